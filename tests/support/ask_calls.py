"""Calls that wait for a person, as tests of the door need them."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx

from app.core.principals import Bounds, Scope, make_key
from app.core.rules import Need
from app.core.tools import Tool
from app.store import principals
from app.tools import request_user_input
from tests.support.services import HANG, RunningService, until
from tests.support.toy_tools import Toys

QUESTIONS: list[dict[str, Any]] = [
    {"id": "colour", "header": "Colour", "question": "Which one?", "options": [{"label": "Red"}, {"label": "Blue"}]},
    {"id": "why", "header": "Reason", "question": "Why that one?"},
]


class AskingToys(Toys):
    """The toys, the tool whose questions a person answers, and one with two needs."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*super().tools, request_user_input.tool, self._both())

    def _both(self) -> Tool:
        """Reads and writes what it is given, and so has two needs."""
        need = next(tool for tool in super().tools if tool.name == "need")
        needs = [Need("read", ".env"), Need("edit", ".env")]
        return replace(need, name="both", needs=lambda args, scope: needs)


async def key_with(
    service: RunningService, *scopes: Scope, principal: str = "ann", bounds: Bounds | None = None
) -> str:
    """The token of a new key."""
    key, token = make_key(service.services.ids, principal, "", scopes, bounds or Bounds())
    await service.services.writer.submit(lambda batch: principals.add_key(batch, key))
    service.services.keyring.put(key)
    return token


async def asking(client: httpx.AsyncClient, path: str = ".env", **more: Any) -> tuple[str, dict[str, Any]]:
    """A call that needs to read this and has to ask; its id and its ask."""
    return await asked_by(client, {"tool": "need", "arguments": {"path": path}} | more)


async def questioning(client: httpx.AsyncClient, **more: Any) -> tuple[str, dict[str, Any]]:
    return await asked_by(client, {"tool": "request_user_input", "arguments": {"questions": QUESTIONS}} | more)


async def asked_by(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    made = await client.post("/v1/calls", params={"wait": 0}, json=body)
    assert made.status_code == 202, made.text
    return made.json()["id"], await open_ask(client, made.json()["id"])


async def open_ask(client: httpx.AsyncClient, call: str) -> dict[str, Any]:
    """The ask this call waits for, as soon as it does."""
    async with asyncio.timeout(HANG):
        while True:
            for ask in (await client.get("/v1/asks", params={"status": "open", "call": call})).json()["data"]:
                found: dict[str, Any] = ask
                return found


async def answer(client: httpx.AsyncClient, ask: dict[str, Any], **said: Any) -> httpx.Response:
    return await client.post(f"/v1/asks/{ask['id']}/answer", json=said)


async def ended(client: httpx.AsyncClient, call: str) -> dict[str, Any]:
    """The call at its end."""
    view: dict[str, Any] = (await client.get(f"/v1/calls/{call}", params={"wait": HANG})).json()
    assert view["ended_at"] is not None, view
    return view


async def over(service: RunningService, ask: dict[str, Any]) -> dict[str, Any]:
    """The ask, once it is not open any more."""
    await until(lambda: service.rows("SELECT 1 FROM asks WHERE id = ? AND status != 'open'", ask["id"]))
    view: dict[str, Any] = (await service.client.get(f"/v1/asks/{ask['id']}")).json()
    return view
