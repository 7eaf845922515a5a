"""`python mcpo_proxy.py …`: mcpo with its own arguments, on uvloop, which it does not take by itself."""

import asyncio

import uvloop
from mcpo import app  # type: ignore[import-not-found]

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
app()
