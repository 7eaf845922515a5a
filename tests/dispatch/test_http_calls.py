"""Requests of tools on the line: whose secrets, which hosts, and how such a call ends."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.custom_tools import HttpDefinition
from app.core.network_policy import DomainSecret, NetworkPolicy
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.core.tools import Tool
from app.custom.http_tools import make
from tests.support.http_servers import Peer, redirect, reply, serving
from tests.support.services import ADMIN, Crib
from tests.support.toy_tools import Toys


class Wired(Toys):
    """The toys, and tools that are HTTP requests."""

    def __init__(self) -> None:
        super().__init__()
        self.http: list[Tool] = []

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*super().tools, *self.http)


def defined(url: str, **more: Any) -> HttpDefinition:
    return HttpDefinition.model_validate(
        {"kind": "http", "name": "fetch", "description": "Fetches.", "url": url} | more
    )


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": reply(b'{"a": 1}', "200 OK", "Content-Type: application/json")}) as peer:
        yield peer


@pytest.fixture
async def crib(data_dir: Path) -> AsyncIterator[Crib]:
    crib = Crib(data_dir, Wired(), private_networks=["127.0.0.0/8"])
    yield crib
    await crib.close()


async def opened(crib: Crib, *tools: Tool, **settings: Any) -> Crib:
    assert isinstance(crib.toys, Wired)
    crib.toys.http = list(tools)
    crib.settings |= settings
    return await crib.open()


async def test_a_call_goes_the_whole_line_and_tells_what_came(crib: Crib, peer: Peer) -> None:
    await opened(crib, make(defined(peer.url()), None))

    call = await crib.run("fetch")

    assert (call["status"], call["error"]) == ("completed", None)
    assert call["result"]["output"] == '{"a": 1}'
    assert call["result"]["structured"] == {"a": 1}
    assert call["result"]["metadata"]["url"] == peer.url()
    assert crib.story(call["id"]) == ["call.pending", "call.running", "call.completed"]


async def test_a_failed_request_keeps_its_body(crib: Crib, peer: Peer) -> None:
    peer.pages["/"] = reply(b"try later", "503 Service Unavailable")
    await opened(crib, make(defined(peer.url()), None))

    call = await crib.run("fetch")

    assert (call["status"], call["error"]["code"], call["error"]["retryable"]) == ("error", "HttpStatus:503", True)
    assert call["result"]["output"] == "try later"


async def test_private_addresses_are_closed_by_default(crib: Crib, peer: Peer) -> None:
    await opened(crib, make(defined(peer.url()), None), private_networks=[])

    call = await crib.run("fetch")

    assert (call["error"]["code"], call["error"]["retryable"]) == ("NetworkError", False)
    assert peer.connections == 0


@pytest.mark.parametrize(("owner", "value"), [("anna", "of-anna"), ("bert", "of-everybody"), (None, "of-admin")])
async def test_the_secrets_of_the_tools_owner_go_along_and_are_not_told(
    crib: Crib, peer: Peer, owner: str | None, value: str
) -> None:
    peer.pages["/"] = lambda seen, writer: reply(f"echo {seen.headers['x-key']}".encode())
    await opened(crib, make(defined(peer.url(), headers={"X-Key": {"secret": "KEY"}}), owner))
    for principal, kept in (("anna", "of-anna"), (GLOBAL_PRINCIPAL, "of-everybody"), ("admin", "of-admin")):
        await crib.services.secrets.put(principal, "KEY", kept, [])

    call = await crib.ended(
        crib.services.dispatcher.submit(crib.request("fetch"), Session(owner or "admin", "default"))
    )

    assert peer.seen[0].headers["x-key"] == value
    assert call["result"]["output"] == "echo [redacted]"


async def test_a_secret_stays_with_its_domains(crib: Crib, peer: Peer) -> None:
    await opened(crib, make(defined(peer.url(), headers={"X-Key": {"secret": "KEY"}}), "anna"))
    await crib.services.secrets.put("anna", "KEY", "for-the-api", ["api.example"])

    call = await crib.ended(crib.services.dispatcher.submit(crib.request("fetch"), Session("anna", "default")))

    assert call["error"]["code"] == "PermissionDenied"
    assert peer.connections == 0


async def test_a_header_names_a_secret_of_the_session_and_its_value_goes_to_its_domain_only(
    crib: Crib, peer: Peer
) -> None:
    peer.pages["/"] = lambda seen, writer: reply(f"echo {seen.headers['authorization']}".encode())
    parameters = {"type": "object", "properties": {"auth": {"type": "string"}}}
    places = {"auth": {"place": "header", "name": "Authorization"}}
    tools = [
        make(defined(peer.url(host=host), name=name, parameters=parameters, places=places), None)
        for name, host in (("bound", "127.0.0.1"), ("other", "localhost"))
    ]
    await opened(crib, *tools)
    await crib.services.secrets.put("anna", "API_KEY", "of-anna", ["127.0.0.1"])
    secrets = (DomainSecret("127.0.0.1", "API_KEY"),)
    policy = NetworkPolicy("allowlist", ("127.0.0.1", "localhost"), secrets)

    for name in ("bound", "other"):
        request = crib.request(name, {"auth": "Bearer $API_KEY"})
        call = await crib.ended(crib.services.dispatcher.submit(request, Session("anna", "s", network_policy=policy)))
        assert call["status"] == "completed", call["error"]
        assert "of-anna" not in str(call)

    assert [seen.headers["authorization"] for seen in peer.seen] == ["Bearer of-anna", "Bearer $API_KEY"]


@pytest.mark.parametrize(
    ("operator", "session", "is_allowed"),
    [
        (None, None, True),
        ({"allowed_domains": ["127.0.0.1"]}, NetworkPolicy("allowlist", ("127.0.0.1",)), True),
        ({"allowed_domains": ["api.example"]}, None, False),
        ({"type": "disabled"}, None, False),
        (None, NetworkPolicy("allowlist", ("api.example",)), False),
        ({"type": "disabled"}, NetworkPolicy("open"), False),
    ],
)
async def test_the_operators_policy_and_the_sessions_both_have_to_allow(
    crib: Crib, peer: Peer, operator: dict[str, Any] | None, session: NetworkPolicy | None, is_allowed: bool
) -> None:
    await opened(crib, make(defined(peer.url()), None), network_policy=operator)

    live = crib.services.dispatcher.submit(crib.request("fetch"), replace(ADMIN, network_policy=session))
    call = await crib.ended(live)

    assert (call["status"] == "completed") == (peer.connections == 1) == is_allowed
    assert is_allowed or call["error"]["code"] == "PermissionDenied"


async def test_a_rule_counts_also_for_where_a_redirect_leads(crib: Crib, peer: Peer) -> None:
    peer.pages["/start"] = redirect(peer.url(host="localhost"))
    rules = [{"permission": "network", "pattern": "localhost", "action": "deny"}]
    await opened(crib, make(defined(peer.url("/start")), None), rules=rules)

    call = await crib.run("fetch")

    assert call["error"]["code"] == "PermissionDenied"
    assert "deny network localhost" in call["error"]["message"]
    assert [seen.target for seen in peer.seen] == ["/start"]


async def test_the_timeout_of_a_call_bounds_the_request_too(crib: Crib, peer: Peer) -> None:
    async def silent(seen: Any, writer: Any) -> bytes:
        await seen.left()
        return b""

    peer.pages["/"] = silent
    await opened(crib, make(defined(peer.url(), timeout=0.2), None), make(defined(peer.url(), name="slow"), None))

    assert (await crib.run("fetch"))["error"]["code"] == "NetworkTimeout"
    assert (await crib.run("slow", timeout=0.2))["error"]["code"] == "Timeout"
