"""The express lane: the hot route reached without the framework's layers.

`POST /v1/calls` is an ordinary route of the application. But the layers every
other request passes (error pages, exit stacks, routing) cost a good part of a
call's CPU, so a request for exactly this route goes to its endpoint directly,
with the same checks and the same answers to errors.
"""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import HostGuard
from app.api.problems import problem_of

PATH = "/v1/calls"


class ExpressApp(FastAPI):
    """FastAPI with one express lane."""

    def __init__(self, endpoint: ASGIApp, guard: HostGuard, **about: Any) -> None:
        super().__init__(**about)
        self._endpoint = endpoint
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if problem := self._guard.problem(scope):
                await problem.response()(scope, receive, send)
                return
            if scope["path"] == PATH and scope["method"] == "POST":
                await self._express(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    async def _express(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        is_answered = False

        async def sending(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._endpoint(scope, receive, sending)
        except Exception as error:
            if is_answered:
                raise
            await problem_of(error).response()(scope, receive, send)
