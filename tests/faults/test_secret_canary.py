"""A canary is sent in every way a secret can come in, and looked for in every place it could be left."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from app.core.redaction import MARK, forms_of
from tests.faults.raw_sockets import Body, Stream, Wire, streamed, wired
from tests.faults.service_processes import HANG, Service
from tests.support.mcp_wire import called

pytestmark = pytest.mark.faults

REGISTERED = 'canary/"7f3a9c+e5\\d1'
SHAPED = "sk-proj-c4n4ry7f3a9ce5d1b8"
SECRETS = pytest.mark.parametrize("secret", [REGISTERED, SHAPED], ids=["registered", "shaped"])


@pytest.fixture
async def wire(service: Service) -> AsyncIterator[Wire]:
    """To a service that knows one secret."""
    async with wired(service.port) as wire:
        kept = await wire.ask("PUT", "/v1/secrets/CANARY", {"value": REGISTERED}, {})
        assert kept.status == 201
        yield wire


def left_behind(service: Service, secret: str) -> list[str]:
    """Files that hold a secret in any form: the database, its WAL, the log, and whatever else was written."""
    places = [service.data_dir.with_suffix(".log"), *service.data_dir.rglob("*")]
    forms = [form.encode() for form in forms_of(secret)]
    return [f"{form!r} in {path}" for path in places if path.is_file() for form in forms if form in path.read_bytes()]


def shown_in(texts: list[str], secret: str) -> list[str]:
    return [f"{form!r} in {text[:2000]}" for form in forms_of(secret) for text in texts if form in text]


def silent_calls(secret: str) -> Iterator[Body]:
    """Calls that are given a secret and do not put it out."""
    yield {"tool": "slow", "arguments": {"token": secret, "chunks": 1}}
    yield {"tool": "slow", "arguments": {"token": f"https://me:{quote(secret, safe='')}@host/", "chunks": 1}}
    yield {"tool": "slow", "arguments": {"token": json.dumps({"inner": secret}), "chunks": 1}}
    yield {"tool": "slow", "arguments": {"token": "x", "chunks": 1}, "metadata": {"note": secret}, "call_id": secret}
    yield {"tool": "echo", "arguments": {"token": 7, "wrong": secret, secret: 1}}
    yield {"tool": "echo", "input": f"wrong kind {secret}"}
    yield {"tool": f"no_{secret}", "arguments": {}}
    yield {"tool": "read_file", "arguments": {"file_path": f"{secret}/../x"}}


def telling_calls(secret: str) -> Iterator[Body]:
    """Calls that put it out: whole, encoded, and in pieces."""
    half = len(secret) // 2
    yield {"tool": "echo", "arguments": {"token": f"it is {secret}"}}
    yield {"tool": "echo", "arguments": {"token": base64.b64encode(f"user:{secret}".encode()).decode()}}
    yield {"tool": "say", "arguments": {"pieces": ["a ", secret[:half], secret[half:], " b\n"]}}
    yield {"tool": "say", "arguments": {"pieces": ["a ", *secret, " b\n"]}}
    yield {"tool": "say", "arguments": {"pieces": [secret[:3], secret[3:]], "breaks": True}}
    yield {"tool": "update_plan", "arguments": {"plan": [{"step": f"use {secret}", "status": "pending"}]}}


async def answers_to(wire: Wire, calls: list[Body]) -> list[str]:
    """What is answered to calls sent alone, in a batch and over MCP, and what can be read of them afterwards."""
    answers = [await wire.call(call) for call in calls]
    answers.append(await wire.ask("POST", "/v1/calls/batch", {"calls": calls}, {}))
    for call in calls:
        asked = called(call["tool"], call.get("arguments", {}))
        answers.append(await wire.ask("POST", "/mcp", asked["json"], asked["headers"]))
    assert {answer.status for answer in answers} <= {200, 400}  # over MCP a tool that is not there is no call
    listed = await wire.get("/v1/calls?limit=500")
    for call in listed.body["data"]:
        answers.append(await wire.get(f"/v1/calls/{call['id']}/output"))
    answers += [listed, await wire.get("/v1/events?after=0&limit=500", Accept="application/json")]
    return [answer.content.decode() for answer in answers]


async def heard(stream: Stream) -> str:
    """Everything a stream brings up to the last call."""
    text = b""
    async with asyncio.timeout(HANG):
        async for frame in stream.follow():
            text += frame + b"\n\n"
            if b"that was all" in frame:
                break
    return text.decode()


@SECRETS
async def test_a_secret_that_comes_in_by_a_call_is_found_nowhere(service: Service, wire: Wire, secret: str) -> None:
    calls = [*silent_calls(secret), *(telling_calls(secret) if secret == REGISTERED else ())]
    types = "call.pending,call.output,call.progress,call.completed,call.error,plan.updated"
    async with streamed(service.port, f"/v1/events?types={types}") as stream:
        listening = asyncio.create_task(heard(stream))
        shown = await answers_to(wire, calls)
        await wire.call({"tool": "echo", "arguments": {"token": "that was all"}})
        shown.append(await listening)
    service.kill()

    assert shown_in(shown, secret) == []
    assert left_behind(service, secret) == []
    assert "".join(shown).count(MARK) > 30


@SECRETS
async def test_a_secret_in_a_header_or_a_url_is_found_nowhere(service: Service, wire: Wire, secret: str) -> None:
    in_path, call = quote(secret, safe=""), {"tool": "echo", "arguments": {"token": "x"}}
    headers = ["Idempotency-Key", "Toolcrib-Session", "Cookie", "X-Api-Key", "Last-Event-ID", "traceparent", "Accept"]
    answers = [await wire.ask("POST", "/v1/calls", call, {header: secret}) for header in headers]
    answers += [await wire.get("/v1/events", **{"Last-Event-ID": secret, "Accept": "application/json"})]
    for path in ("/v1/calls/{}", "/v1/tools/{}", "/v1/secrets/{}", "/{}", "/v1/calls?session={}"):
        answers.append(await wire.get(path.format(in_path)))
    for path in ("/v1/events?types={}", "/v1/events?ticket={}", "/v1/calls?status={}", "/v1/calls?since={}"):
        answers.append(await wire.get(path.format(in_path), Accept="application/json"))
    answers.append(await wire.ask("POST", f"/v1/calls?wait={in_path}", call, {}))
    answers.append(await wire.ask("POST", "/v1/calls", {"tool": "echo", secret: secret}, {}))
    answers.append(await wire.ask("POST", "/v1/keys", {"principal": f"no principal {secret}"}, {}))
    answers.append(await wire.ask("PUT", "/v1/secrets/OTHER", {"value": [secret], "domains": [secret]}, {}))
    answers.append(await wire.ask("DELETE", f"/v1/keys/{in_path}", None, {}))
    service.kill()

    assert all(answer.status < 500 for answer in answers), [answer.status for answer in answers]
    assert shown_in([answer.content.decode() for answer in answers], secret) == []
    assert left_behind(service, secret) == []


@SECRETS
async def test_the_search_would_find_it(service: Service, wire: Wire, secret: str) -> None:
    """The same look for a text that is no secret: it is in the database, the WAL and what is shown."""
    plain = "no-secret-at-all-0815"
    shown = await answers_to(wire, [*silent_calls(plain), *telling_calls(plain)])
    service.kill()

    assert len(shown_in(shown, plain)) > 10
    assert {Path(line.rpartition(" ")[2]).name for line in left_behind(service, plain)} >= {
        "toolcrib.db-wal",
        "data.log",
    }
