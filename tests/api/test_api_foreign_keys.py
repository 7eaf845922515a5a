"""Every route, asked with a key for which what is asked for is not there: nothing tells that it is.

The routes are those of the OpenAPI document, so a new one is walked too. What
its path, its query, its headers and its body can name has to be known here: a
route that names something unknown fails until this file says what it is.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.main import create_app
from tests.mcp.server_clients import mcp_client
from tests.support.services import HANG, RunningService
from tests.support.toy_tools import Toys

MARK = "alicemark"
SCOPES = ["calls:run", "calls:read", "asks:answer", "tools:write", "rules:write", "secrets:write", "metrics"]
DOCUMENT = create_app(Settings()).openapi()
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}

IN_PATHS = {
    ("calls", "id"): "call",
    ("sessions", "id"): "session",
    ("secrets", "name"): "secret",
    ("keys", "id"): "key",
    ("tools", "name"): "tool",
    ("asks", "id"): "ask",
    ("rules", "id"): "rule",
    ("servers", "name"): "server",
    ("run", "name"): "run",
}
"""What a parameter of a path names, by the collection it is in."""
PARTS = {
    ("attachments", "n"): "0",
    ("files", "path"): "hello.txt",
    ("terminals", "terminal"): "1000",
    ("parse", "dialect"): "openai-chat",
}
"""Parameters of paths that name a part of what stands before them, or nothing anybody owns: one that may be there."""
NAMING = {
    "session": "session",
    "principal": "principal",
    "message": "message",
    "Toolcrib-Session": "session",
    "Idempotency-Key": "idempotency key",
    "call": "call",
    "workspace": "workspace",
    "cursor": "call",
    "id": "session",
    "server": "server",
}
"""What a parameter of a query, a header or a body names."""
NOBODYS = {
    "call": f"call_{0:024x}",
    "key": f"key_{0:024x}",
    "session": "nobodys-session",
    "principal": "zed",
    "secret": "nobodys",
    "tool": "nobodys_tool",
    "ask": f"ask_{0:024x}",
    "rule": f"rule_{0:024x}",
    "message": "nobodys-message",
    "idempotency key": "nobodys-key",
    "workspace": "/nobodys/workspace",
    "server": "nobodys-server",
    "run": f"run_{0:024x}",
}
"""What looks like a thing, and is not there."""
HARMLESS = {
    *("wait", "limit", "offset", "since", "until", "types", "after", "output_after", "status", "tool", "global"),
    *("traceparent", "Last-Event-ID", "model", "provider", "agent", "source", "effect", "q", "fields", "probe", "own"),
    *("scope", "path", "depth", "Range", "If-Range", "fresh", "uri", "replay", "timeout", "ask_timeout", "on_ask"),
    *("format", "names", "strict", "builtins", "cache", "defer", "namespace", "shape", "tool_choice", "parallel"),
    "cancel_on_disconnect",
    *("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"),
}
"""Parameters of queries and headers that name nothing anybody owns."""
OF_THE_PRINCIPAL = {"secrets", "keys", "tools", "mcp"}
"""Collections that have nothing to do with sessions: a key that is bound to some sees them whole."""

GENERATED = re.compile(
    r"\b(call|ses|key|ask|run|rule)_[0-9a-f]{24}|\bt[kt]_[\w-]{43}|\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=duration_ms\":)[\d.]+"
    r"|(?<=\"seq\":)\d+"
)


@dataclass
class Stranger:
    """Somebody for whom nothing of alice's is there, and what that is."""

    service: RunningService
    client: httpx.AsyncClient
    things: dict[str, str]
    is_bound: bool


@pytest.fixture(params=["another principal", "a key bound to other sessions"])
async def stranger(service: RunningService, request: pytest.FixtureRequest) -> AsyncIterator[Stranger]:
    is_bound = request.param != "another principal"
    alice = await key_of(service, "alice")
    other = await key_of(service, "alice", sessions=["others-*"]) if is_bound else await key_of(service, "bob")
    async with service.client_of(alice["token"]) as hers, service.client_of(other["token"]) as client:
        things = await belongings(hers) | {"key": alice["id"], "principal": "alice"}
        yield Stranger(service, client, things, is_bound)


async def key_of(service: RunningService, principal: str, **bounds: Any) -> dict[str, Any]:
    body = {"principal": principal, "name": MARK, "scopes": SCOPES, "bounds": bounds}
    answer = await service.client.post("/v1/keys", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def belongings(alice: httpx.AsyncClient) -> dict[str, str]:
    """One of everything that can be owned."""
    session = (await alice.post("/v1/sessions", json={"id": f"{MARK}-session", "labels": {MARK: MARK}})).json()
    await alice.put(f"/v1/secrets/{MARK}", json={"value": f"{MARK}-value"})
    body = {
        "tool": "wait_free",
        "arguments": {"say": MARK},
        "session": session["id"],
        "message_id": f"{MARK}-message",
        "call_id": MARK,
        "metadata": {MARK: MARK},
    }
    headers = {"Idempotency-Key": f"{MARK}-key"}
    call = (await alice.post("/v1/calls", params={"wait": 0}, json=body, headers=headers)).json()
    tool = {"kind": "client", "name": f"{MARK}_tool", "description": MARK}
    assert (await alice.post("/v1/tools", json=tool)).status_code == 201
    server = {"name": f"{MARK}-server", "url": "https://docs.invalid/mcp", "enabled": False}
    assert (await alice.post("/v1/mcp/servers", json=server)).status_code == 201
    line = {"permission": "edit", "pattern": MARK, "action": "deny", "scope": "session", "session": session["id"]}
    rule = (await alice.post("/v1/rules", json=line)).json()
    asking = {"tool": "need", "arguments": {"path": f"{MARK}.env"}, "session": session["id"]}
    await alice.post("/v1/calls", params={"wait": 0}, json=asking)
    wanted = [{"id": f"call_{MARK}", "function": {"name": "echo", "arguments": json.dumps({"text": MARK})}}]
    message = {"id": f"{MARK}-message", "choices": [{"message": {"tool_calls": wanted}}]}
    run = await alice.post("/v1/run/openai-chat", json=message, headers={"Toolcrib-Session": session["id"]})
    return {
        "run": run.json()["id"],
        "call": (await once(alice, f"/v1/calls/{call['id']}", lambda body: body["status"] == "running"))["id"],
        "ask": (await once(alice, "/v1/asks", lambda body: bool(body["data"])))["data"][0]["id"],
        "rule": rule["id"],
        "session": session["id"],
        "workspace": session["workspace"],
        "secret": MARK,
        "tool": f"{MARK}_tool",
        "message": f"{MARK}-message",
        "idempotency key": f"{MARK}-key",
        "server": f"{MARK}-server",
    }


async def once(alice: httpx.AsyncClient, path: str, question: Callable[[Any], bool]) -> Any:
    """What is there as soon as it is as it should be."""
    async with asyncio.timeout(HANG):
        while not question(body := (await alice.get(path)).json()):  # noqa: ASYNC110
            await asyncio.sleep(0)
    return body


def body_of(operation: dict[str, Any]) -> Any:
    """The example the document gives; None for what is no JSON."""
    if "application/json" not in operation.get("requestBody", {}).get("content", {}):
        return None
    content = operation["requestBody"]["content"]["application/json"]
    schema = content["schema"]
    if "example" in content or "examples" in schema:  # a message, of which there are many kinds
        return content.get("example") or schema["examples"][0]
    for option in [schema, *schema.get("anyOf", []), *schema.get("oneOf", [])]:
        if "$ref" in option:
            return DOCUMENT["components"]["schemas"][option["$ref"].rpartition("/")[2]]["examples"][0]
    raise AssertionError(f"no example for {operation['operationId']}")


def fields_of(operation: dict[str, Any]) -> set[str]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    refs = [
        option["$ref"].rpartition("/")[2]
        for option in [schema, *schema.get("anyOf", []), *schema.get("oneOf", [])]
        if "$ref" in option
    ]
    return {name for ref in refs for name in DOCUMENT["components"]["schemas"][ref].get("properties", {})}


async def ask(stranger: Stranger, name: str, named: dict[tuple[str, str], str]) -> httpx.Response:
    """Ask a route, with what is to be named in its path, query, headers and body. What is not is nobody's."""
    method, path, operation = OPERATIONS[name]
    for collection, parameter in parameters_of(path):
        part = PARTS.get((collection, parameter))
        value = named.get(("path", parameter)) or part or NOBODYS[IN_PATHS[collection, parameter]]
        path = path.replace(f"{{{parameter}}}", value)
    body = body_of(operation)
    inside = {field: value for (place, field), value in named.items() if place == "body"}
    headers = {field: value for (place, field), value in named.items() if place == "header"}
    return await stranger.client.request(
        method,
        path,
        params={field: value for (place, field), value in named.items() if place == "query"},
        headers={"Accept": "application/json"} | headers,
        json=None if body is None else body | inside,
    )


def parameters_of(path: str) -> list[tuple[str, str]]:
    """The parameters of a path, each with the collection it is in."""
    parts = path.split("/")
    return [(parts[number - 1], part[1:-1]) for number, part in enumerate(parts) if part.startswith("{")]


def places_of(name: str) -> list[tuple[str, str, str]]:
    """Where a route can name something, by what, and what kind of thing that is."""
    _, path, operation = OPERATIONS[name]
    naming = [one for one in parameters_of(path) if one not in PARTS]
    found = [("path", parameter, IN_PATHS[collection, parameter]) for collection, parameter in naming]
    for parameter in operation.get("parameters", []):
        if parameter["in"] != "path" and parameter["name"] not in HARMLESS:
            found.append((parameter["in"], parameter["name"], NAMING[parameter["name"]]))
    return found + [("body", field, NAMING[field]) for field in sorted(fields_of(operation) & NAMING.keys())]


def told(answer: httpx.Response, *values: str) -> tuple[int, str]:
    """What an answer says, without what was sent and what is made up anew each time."""
    text = answer.text
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(json.dumps(value)[1:-1], "<sent>")
    return answer.status_code, GENERATED.sub("<new>", text)


async def test_what_is_not_ones_own_is_as_if_it_were_not_there(stranger: Stranger, subtests: pytest.Subtests) -> None:
    before = owned(stranger)
    for name, (_, path, _) in OPERATIONS.items():
        collection = path.split("/")[2] if path.startswith("/v1/") else ""
        if not (stranger.is_bound and collection in OF_THE_PRINCIPAL):
            with subtests.test(name):
                await require_the_same_answers(stranger, name)
                assert owned(stranger) == before


async def require_the_same_answers(stranger: Stranger, name: str) -> None:
    """A route that names things of another key answers as if there were no such things."""
    places = places_of(name)
    for some in [*([place] for place in places), places] if places else []:
        theirs = {(place, field): stranger.things[kind] for place, field, kind in some}
        nobodys = {(place, field): NOBODYS[kind] for place, field, kind in some}
        foreign = told(await ask(stranger, name, theirs), *theirs.values())
        missing = told(await ask(stranger, name, nobodys), *nobodys.values())
        assert foreign == missing, some
        assert foreign[0] != 500
        assert MARK not in foreign[1]
    assert MARK not in (await ask(stranger, name, {})).text


def owned(stranger: Stranger) -> dict[str, list[dict[str, Any]]]:
    """Everything of alice's, as it stands in the records."""
    return {
        table: stranger.service.rows(f"SELECT * FROM {table} WHERE principal = 'alice' ORDER BY 1, 2")
        for table in ("calls", "sessions", "secrets", "keys", "asks", "rules", "tools", "mcp_servers", "runs")
    }


async def test_mcp_does_not_know_the_sessions_of_others(stranger: Stranger) -> None:
    key = stranger.client.headers["Authorization"]
    answers = []
    for session in (stranger.things["session"], "nobodys-session"):
        async with mcp_client(stranger.service, "auto", {"Authorization": key, "Toolcrib-Session": session}) as client:
            answer = await client.call_tool("echo", {"text": "x"})
        assert answer.is_error is True
        answers.append([block.text.replace(session, "<sent>") for block in answer.content if block.type == "text"])

    assert answers[0] == answers[1]


def test_the_walk_knows_what_every_route_can_name() -> None:
    for name in OPERATIONS:
        places_of(name)


async def test_the_walk_bites(service: RunningService, toys: Toys, tmp_path: Path) -> None:
    """An owner is told what a stranger is not, so the walk would see it if it were."""
    alice = await key_of(service, "alice")
    async with service.client_of(alice["token"]) as hers:
        things = await belongings(hers) | {"key": alice["id"], "principal": "alice"}
        owner = Stranger(service, hers, things, is_bound=False)
        for name, place, field in [
            ("get_call", "path", "id"),
            ("get_call_attachment", "path", "id"),
            ("list_calls", "query", "session"),
            ("list_events", "query", "session"),
            ("get_session", "path", "id"),
            ("get_session_plan", "path", "id"),
            ("list_files", "path", "id"),
            ("get_file", "path", "id"),
            ("get_secret", "path", "name"),
            ("get_ask", "path", "id"),
            ("get_tool", "path", "name"),
            ("get_mcp_server", "path", "name"),
            ("get_mcp_server_log", "path", "name"),
            ("create_call", "header", "Toolcrib-Session"),
            ("create_call", "header", "Idempotency-Key"),
            ("create_ticket", "body", "call"),
            ("create_session", "body", "workspace"),
        ]:
            kind = {(p, f): k for p, f, k in places_of(name)}[place, field]
            theirs, nobodys = things[kind], NOBODYS[kind]
            foreign = await ask(owner, name, {(place, field): theirs})
            missing = await ask(owner, name, {(place, field): nobodys})
            assert told(foreign, theirs) != told(missing, nobodys), (name, place, field)
