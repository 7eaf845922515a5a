"""From `needs_auth` to a call that works: a running service, a real MCP server behind tokens, and a browser."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.redaction import forms_of
from tests.mcp.authorization_server import Issuer, Resource, served
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

HANG = 20.0
SECRET = "the-secret-of-the-robot"


class Guarded(Resource):
    """The SDK's own server, for those with a token. To write takes another scope."""

    greets_strangers = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Guarded"]:
        server: Server[Any] = Server("docs", version="1", on_list_tools=_list, on_call_tool=_call)
        self.manager = StreamableHTTPSessionManager(app=server, json_response=True, stateless=True)
        async with self.manager.run(), served(self._app):
            yield self

    def _app(self, origin: str) -> ASGIApp:
        self.origin = self.issuer.origin = origin
        return Starlette(routes=[Route("/mcp", _Asgi(self._guard)), *self.routes(), *self.issuer.routes()])

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        granted = self.issuer.knows(headers.get("authorization"))
        body = await _body(receive)
        is_greeting = b'"server/discover"' in body or b'"initialize"' in body
        if granted is None and not (self.greets_strangers and is_greeting):
            await Response(status_code=401, headers={"WWW-Authenticate": self.challenge})(scope, receive, send)
            return
        if b'"write"' in body and granted is not None and "docs:write" not in granted.scope.split():
            more = 'Bearer error="insufficient_scope", scope="docs:write"'
            await Response(status_code=403, headers={"WWW-Authenticate": more})(scope, receive, send)
            return
        await self.manager.handle_request(scope, _again(body, receive), send)


class _Asgi:
    """A class, because Starlette takes a function for one that gets a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _list(ctx: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    names = ("echo", "write")
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schema) for name in names])


async def _call(ctx: Any, params: Any) -> types.CallToolResult:
    """It says what it was shown, which it must not."""
    header = ctx.request.headers["authorization"]
    text = f"{params.name} {params.arguments['text']} {header}"
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def _body(receive: Receive) -> bytes:
    body, is_more = b"", True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    told = [{"type": "http.request", "body": body, "more_body": False}]

    async def once() -> Any:
        return told.pop() if told else await receive()

    return once


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    """One whose principals may reach this machine."""
    rules = [{"permission": "mcp", "action": "allow"}]
    service = RunningService(data_dir, toys, private_networks=["127.0.0.0/8"], rules=rules)
    await service.open()
    yield service
    await service.close()


async def add(client: httpx.AsyncClient, docs: Guarded, **auth: Any) -> dict[str, Any]:
    body = {"name": "docs", "url": docs.url} | ({"auth": {"type": "oauth"} | auth} if auth else {})
    answer = await client.post("/v1/mcp/servers", json=body)
    assert answer.status_code == 201, answer.text
    added: dict[str, Any] = answer.json()
    return added


async def sign_in(client: httpx.AsyncClient) -> httpx.Response:
    """What a frontend and a person do."""
    begun = await client.post("/v1/mcp/servers/docs/auth")
    assert begun.status_code == 200, begun.text
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with httpx.AsyncClient(trust_env=False, verify=False, follow_redirects=True, headers=link) as browser:
        page = await browser.get(begun.json()["url"])
    assert page.status_code == 200, page.text
    return page


async def until(client: httpx.AsyncClient, question: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The server once it is as it should be."""
    async with asyncio.timeout(HANG):
        while not question(view := (await client.get("/v1/mcp/servers/docs")).json()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    seen: dict[str, Any] = view
    return seen


def in_state(state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda view: view["state"] == state


async def call(client: httpx.AsyncClient, tool: str = "echo") -> dict[str, Any]:
    body = {"tool": f"mcp__docs__{tool}", "arguments": {"text": "hello"}}
    made: dict[str, Any] = (await client.post("/v1/calls", json=body)).json()
    return made


async def test_a_server_is_signed_in_to_and_used_and_no_token_is_left_anywhere(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        added = await add(service.client, docs)
        page = await sign_in(service.client)
        connected = await until(service.client, in_state("connected"))
        first = await call(service.client)
        await service.restart()
        again = await until(service.client, in_state("connected"))
        second = await call(service.client)
        shown = [
            await service.client.get(path) for path in ("/v1/calls", "/v1/mcp/servers", "/v1/mcp/servers/docs/log")
        ]
        shown.append(await service.client.get("/v1/events?after=0&limit=500", headers={"Accept": "application/json"}))
        rows = service.rows("SELECT principal, server, issuer FROM mcp_tokens")
        await service.close()
        files = {path.name: path.read_bytes() for path in service.data_dir.rglob("*") if path.is_file()}

    assert (added["state"], connected["tools"], again["tools"]) == ("needs_auth", 2, 2)
    assert "Signed in" in page.text
    for made in (first, second):
        assert (made["status"], made["error"]) == ("completed", None)
        assert made["result"]["output"] == "echo hello Bearer [redacted]"
    assert docs.issuer.count("/authorize") == 1
    assert rows == [{"principal": "*", "server": "docs", "issuer": docs.origin}]
    told = [event["data"]["state"] for event in shown[-1].json()["data"] if event["type"] == "mcp.status"]
    assert [state for state in told if state != "starting"][:2] == ["needs_auth", "connected"]
    everything = json.dumps([first, second, page.text, *(answer.text for answer in shown)])
    forms = {form for secret in docs.issuer.everything for form in forms_of(secret)}
    assert len(forms) > 15
    assert [form for form in forms if form in everything] == []
    assert [(name, form) for name, data in files.items() for form in forms if form.encode() in data] == []


async def test_what_was_revoked_needs_a_person_again(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs)
        await sign_in(service.client)
        await until(service.client, in_state("connected"))
        docs.issuer.access.clear()
        docs.issuer.refresh.clear()

        failed = await call(service.client)
        await until(service.client, in_state("needs_auth"))
        await sign_in(service.client)
        await until(service.client, in_state("connected"))

        assert failed["error"]["code"] == "ToolUnavailable"
        assert "A person has to sign in first" in failed["error"]["message"]
        assert (await call(service.client))["status"] == "completed"


async def test_a_server_that_says_hello_to_everybody_needs_a_person_all_the_same(service: RunningService) -> None:
    docs = Guarded(Issuer())
    docs.greets_strangers = True
    async with docs.open():
        await add(service.client, docs)
        view = await until(service.client, lambda view: view["state"] not in ("starting", "failed"))
        await sign_in(service.client)
        await until(service.client, in_state("connected"))
        made = await call(service.client)

    assert (view["state"], view["next_retry_at"]) == ("needs_auth", None)
    assert (made["status"], made["error"]) == ("completed", None)


async def test_tokens_survive_a_crash(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs)
        await sign_in(service.client)
        await service.crash()
        await service.open()
        await until(service.client, in_state("connected"))

        assert docs.issuer.count("/authorize") == 1


async def test_a_token_is_renewed_between_two_calls(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs)
        await sign_in(service.client)
        await until(service.client, in_state("connected"))
        docs.issuer.access.clear()  # as if its time were over, which nobody told us

        made = await call(service.client)

        assert (made["status"], made["error"]) == ("completed", None)
        assert docs.issuer.count("/authorize") == 1
        assert docs.issuer.count("/token") > 1


async def test_more_scope_is_asked_for_when_a_tool_needs_it(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs, scope="docs:read")
        await sign_in(service.client)
        await until(service.client, in_state("connected"))

        refused = await call(service.client, "write")
        await sign_in(service.client)
        await until(service.client, in_state("connected"))
        written = await call(service.client, "write")

        assert refused["status"] == "error"
        assert "a person has to sign in to docs again" in refused["error"]["message"]
        assert docs.issuer.of("/authorize")["scope"] == "docs:read docs:write"
        assert written["status"] == "completed", written


async def test_a_program_signs_in_without_anybody(service: RunningService) -> None:
    issuer = Issuer()
    issuer.add_client("robot", SECRET)
    async with Guarded(issuer).open() as docs:
        await service.client.put("/v1/secrets/ROBOT?global=true", json={"value": SECRET, "domains": ["127.0.0.1"]})
        secret = {"secret": "ROBOT"}
        added = await add(service.client, docs, grant="client_credentials", client_id="robot", client_secret=secret)
        made = await call(service.client)
        begun = await service.client.post("/v1/mcp/servers/docs/auth")

        assert added["state"] == "connected", added
        assert made["status"] == "completed"
        assert (begun.status_code, begun.json()) == (200, {"url": None, "expires_at": None})


async def test_what_is_forgotten_needs_a_person_again(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs)
        await sign_in(service.client)
        await until(service.client, in_state("connected"))

        forgotten = await service.client.delete("/v1/mcp/servers/docs/auth")
        await until(service.client, in_state("needs_auth"))

        assert forgotten.status_code == 204
        assert service.rows("SELECT * FROM mcp_tokens") == []


async def test_with_its_server_a_token_goes(service: RunningService) -> None:
    async with Guarded(Issuer()).open() as docs:
        await add(service.client, docs)
        await sign_in(service.client)

        await service.client.delete("/v1/mcp/servers/docs")

        assert service.rows("SELECT * FROM mcp_tokens") == []


async def test_a_server_is_signed_in_to_by_its_owner_alone(service: RunningService) -> None:
    scopes = ["calls:run", "calls:read", "tools:write"]
    async with AsyncExitStack() as stack:
        docs = await stack.enter_async_context(Guarded(Issuer()).open())
        clients = []
        for name in ("alice", "bob"):
            body = {"principal": name, "name": name, "scopes": scopes}
            key = (await service.client.post("/v1/keys", json=body)).json()["token"]
            clients.append(await stack.enter_async_context(service.client_of(key)))
        alice, bob = clients
        await add(alice, docs)

        for client in (bob, service.client):
            assert (await client.post("/v1/mcp/servers/docs/auth")).status_code == 404
            assert (await client.delete("/v1/mcp/servers/docs/auth")).status_code == 404
        await sign_in(alice)
        await until(alice, in_state("connected"))
        made = await call(alice)
        by_admin = await service.client.post("/v1/mcp/servers/docs/auth?principal=alice")

        assert made["status"] == "completed"
        assert by_admin.status_code == 200
        assert service.rows("SELECT principal FROM mcp_tokens") == [{"principal": "alice"}]


async def test_an_owners_server_is_not_reached_inside(data_dir: Path, toys: Toys) -> None:
    service = await RunningService(data_dir, toys).open()
    try:
        async with Guarded(Issuer()).open() as docs:
            await service.client.post("/v1/mcp/servers?own=true", json={"name": "docs", "url": docs.url})
            begun = await service.client.post("/v1/mcp/servers/docs/auth?own=true")

            assert begun.status_code == 502
            assert begun.json()["code"] == "SignInFailed"
            assert "a private address" in begun.json()["detail"]
            assert docs.asked == []
    finally:
        await service.close()


async def test_where_nobody_signs_in_nobody_is_sent_anywhere(service: RunningService) -> None:
    async with served(lambda origin: Starlette()) as origin:
        url = f"{origin}/mcp"
        bodies = [
            {"name": "plain", "url": url},
            {"name": "keyed", "url": url, "auth": {"type": "bearer", "token": "a-token-of-our-own-choice"}},
        ]
        for body in bodies:
            await service.client.post("/v1/mcp/servers?wait=0", json=body)
        answers = [await service.client.post(f"/v1/mcp/servers/{name}/auth") for name in ("plain", "keyed", "missing")]

    assert [answer.status_code for answer in answers] == [409, 409, 404]
    assert [answer.json()["code"] for answer in answers] == ["NoSignIn", "NoSignIn", "NotFound"]
