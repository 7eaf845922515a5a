"""Services with MCP servers behind them, as tests of the neighbourhood use them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.core.tools import Tool
from app.tools import BUILTINS
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

HANG = 60.0
ALLOW_MCP = {"permission": "mcp", "pattern": "*", "action": "allow"}


class NoToys(Toys):
    """The tools that a service has anyway."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return BUILTINS


@asynccontextmanager
async def crib(
    data_dir: Path, servers: dict[str, Any], *, is_patient: bool = True, **settings: Any
) -> AsyncIterator[RunningService]:
    """A service with these servers, whose tools nobody is asked about; all are connected, if we are patient."""
    mcp = {"servers": servers} | settings.pop("mcp", {})
    given = {"rules": [ALLOW_MCP], "mcp": mcp} | settings
    service = RunningService(data_dir, NoToys(), **given)
    await service.open()
    try:
        await connected(service, *(servers if is_patient else ()))
        yield service
    finally:
        await service.close()


async def connected(service: RunningService, *names: str) -> None:
    """Wait until these servers are there."""
    async with asyncio.timeout(HANG):
        for name in names:
            while (view := await server_of(service, name))["state"] != "connected":
                assert view["state"] == "starting", view
                await asyncio.sleep(0.02)


async def server_of(service: RunningService, name: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/mcp/servers/{name}")
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def call(
    service: RunningService, tool: str, arguments: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A call over HTTP, from its request to its end."""
    body = {"tool": tool, "arguments": arguments or {}} | more
    answer = await service.client.post("/v1/calls", params={"wait": HANG}, json=body, timeout=HANG + 10)
    assert answer.status_code == 200, answer.text
    ended: dict[str, Any] = answer.json()
    return ended


async def done(service: RunningService, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result of a call that has to succeed."""
    ended = await call(service, tool, arguments)
    assert ended["status"] == "completed", ended
    result: dict[str, Any] = ended["result"]
    return result


async def ask_of(service: RunningService, id: str) -> dict[str, Any]:
    """What a call waits for; it may take a moment until it does."""
    async with asyncio.timeout(HANG):
        while True:
            asks = (await service.client.get("/v1/asks", params={"status": "open"})).json()["data"]
            if found := [ask for ask in asks if ask["call"] == id]:
                ask: dict[str, Any] = found[0]
                return ask
            await asyncio.sleep(0.02)


async def begun(service: RunningService, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """The id of a call that goes on by itself."""
    body = {"tool": tool, "arguments": arguments or {}}
    answer = await service.client.post("/v1/calls", params={"wait": 0}, json=body)
    assert answer.status_code in (200, 202), answer.text
    id: str = answer.json()["id"]
    return id


async def ended(service: RunningService, id: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/calls/{id}", params={"wait": HANG}, timeout=HANG + 10)
    view: dict[str, Any] = answer.json()
    assert view["status"] in ("completed", "error"), view
    return view
