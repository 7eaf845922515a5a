"""Toolcrib as the client that a conformance suite looks at: `python -m tests.conformance.client_under_test URL`.

A service is started with that server as its only one. Everything the server has is listed, read and called, every
question is agreed to, and where a sign-in is wanted, the browser's part in it is played.
"""

import asyncio
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from app.store import db, migrate
from tests.support.mcp_service import HANG, NoToys, call, server_of
from tests.support.services import RunningService

ALLOW = {"permission": "*", "pattern": "*", "action": "allow"}
SAMPLES: dict[str, Any] = {"string": "word", "integer": 1, "number": 5, "boolean": True, "object": {}, "array": []}
ECHO, ECHOED = "json_schema_echo", "json_schema_2020_12_tool"
PEER = "mcp__peer__"
MOST_SIGN_INS = 3
PATIENCE = 3.0
"""Seconds after which a server that does not come back is taken for one that will not."""


async def main(url: str, context: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        data_dir.mkdir(mode=0o700)
        migrate.upgrade(db.database_url(data_dir, None))
        service = RunningService(data_dir, NoToys(), **settings(url, context))
        await service.open()
        agreeing = asyncio.create_task(agree(service.client))
        try:
            await be_let_in(service)
            await look_around(service)
            await use_tools(service, context)
        finally:
            agreeing.cancel()
            with suppress(asyncio.CancelledError):
                await agreeing
            await service.close()


def settings(url: str, context: dict[str, Any]) -> dict[str, Any]:
    """With what a server that knows us already wants to hear."""
    peer: dict[str, Any] = {"kind": "http", "url": url}
    given: dict[str, Any] = {"rules": [ALLOW], "private_networks": ["127.0.0.0/8", "::1/128"]}
    if context.get("name") == "auth/basic-cimd":
        context = context | {"client_id": "https://conformance-test.local/client-metadata.json"}
    if "client_id" in context:
        is_alone = context["name"].startswith("auth/client-credentials")
        grant = "client_credentials" if is_alone else "authorization_code"
        peer["auth"] = {"type": "oauth", "grant": grant, "client_id": context["client_id"]}
    if "client_secret" in context:
        os.environ["CLIENT_SECRET"] = context["client_secret"]
        given["secrets"] = {"CLIENT_SECRET": {"env": "CLIENT_SECRET"}}
        peer["auth"]["client_secret"] = {"secret": "CLIENT_SECRET"}
    return given | {"mcp": {"servers": {"peer": peer}}}


async def be_let_in(service: RunningService) -> None:
    """Sign in as often as the server wants, within reason."""
    for _ in range(MOST_SIGN_INS):
        if await settle(service) != "needs_auth":
            return
        await sign_in(service)


async def settle(service: RunningService) -> str:
    """Until the server is there, or will not be; how it is then."""
    began = asyncio.get_running_loop().time()
    while (view := await server_of(service, "peer"))["state"] in ("starting", "failed"):
        waited = asyncio.get_running_loop().time() - began
        if waited > (PATIENCE if view["state"] == "failed" else HANG):
            break
        await asyncio.sleep(0.02)
    say(f"{view['state']}: {view['protocol_version']} {view['error']}, {view['tools']} tools, {view['invalid_tools']}")
    state: str = view["state"]
    return state


async def sign_in(service: RunningService) -> None:
    """What a person does in a browser: go where they are sent, up to the page that is ours."""
    answer = await service.client.post("/v1/mcp/servers/peer/auth")
    say(answer.text)
    url: str | None = answer.json().get("url")
    async with httpx.AsyncClient(trust_env=False) as browser:
        while url is not None and not url.partition("?")[0].endswith("/oauth/callback"):
            url = (await browser.get(url)).headers.get("location")
    if url is not None:
        say((await service.client.get(f"/oauth/callback?{url.partition('?')[2]}")).text)


async def look_around(service: RunningService) -> None:
    """Read all that is listed."""
    for resource in await listed(service.client, "resources"):
        asked = {"server": "peer", "uri": resource["uri"]}
        say((await service.client.get("/v1/mcp/resources/read", params=asked)).text)
    await listed(service.client, "templates")
    for prompt in await listed(service.client, "prompts"):
        asked = {"server": "peer", "name": prompt["name"]}
        say((await service.client.post("/v1/mcp/prompts", json=asked)).text)


async def listed(client: httpx.AsyncClient, kind: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/mcp/{kind}")
    items: list[dict[str, Any]] = answer.json()["data"] if answer.status_code == 200 else []
    return items


async def use_tools(service: RunningService, context: dict[str, Any]) -> None:
    tools = {
        tool["name"].removeprefix(PEER): tool["parameters"]
        for tool in (await service.client.get("/v1/tools")).json()["data"]
        if tool["name"].startswith(PEER)
    }
    samples = [{"name": name, "arguments": sample(schema, tools)} for name, schema in tools.items()]
    for wanted in context.get("toolCalls") or samples:
        given = {name: value for name, value in wanted["arguments"].items() if value is not None}
        ended = await call(service, PEER + wanted["name"], given)
        if "sign in" in str(ended["error"]):  # for this it wants to allow us more than it did before
            await sign_in(service)
            await settle(service)
            ended = await call(service, PEER + wanted["name"], given)
        say(f"{wanted['name']}: {ended['status']} {ended['error']} {ended['result'] and ended['result']['output']}")


def sample(schema: dict[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit, as far as they are simple; who wants a schema back gets the one it gave."""
    properties = schema.get("properties", {})
    if "schema" in properties and ECHOED in tools:
        return {"schema": tools[ECHOED]}
    return {name: SAMPLES.get(properties.get(name, {}).get("type"), "word") for name in schema.get("required", [])}


async def agree(client: httpx.AsyncClient) -> None:
    """Say yes to everything, and leave forms as they are."""
    while True:
        for ask in (await client.get("/v1/asks", params={"status": "open"})).json()["data"]:
            say((await client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {}})).text)
        await asyncio.sleep(0.05)


def say(text: str) -> None:
    sys.stderr.write(text[:2000] + "\n")


if __name__ == "__main__":
    named = {"name": os.environ.get("MCP_CONFORMANCE_SCENARIO", "")}
    asyncio.run(main(sys.argv[1], named | json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))))
