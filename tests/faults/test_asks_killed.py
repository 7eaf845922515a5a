"""kill -9 while a person thinks, and right after the answer: what was asked is still asked, what was allowed runs once,
and nothing else runs at all."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.data_checks import Acknowledged, broken_promises
from tests.faults.raw_sockets import GONE, Body, Wire, wired
from tests.faults.recording_client import Actor
from tests.faults.service_processes import HANG, Service, Zygote

pytestmark = pytest.mark.faults

QUESTIONS = [{"id": "colour", "header": "Colour", "question": "Which one?"}]


async def asked(wire: Wire, port: int, told: Acknowledged, tool: str = "careful") -> tuple[Body, Body]:
    """A call that waits for a person, and its ask."""
    act = Actor(wire, port, told)
    if tool == "careful":
        call = await act.call(tool, "once", wait=0)
    else:
        body = {"tool": tool, "arguments": {"questions": QUESTIONS}, "call_id": "question"}
        call = (await wire.call(body, wait=0)).body
    [ask] = await act.open_asks(1)
    return (await wire.get(f"/v1/calls/{call['id']}")).body, ask


async def ended(wire: Wire, call: Body) -> Body:
    return (await wire.get(f"/v1/calls/{call['id']}?wait={HANG}")).body


async def say(wire: Wire, ask: Body, **said: Any) -> int:
    return (await wire.ask("POST", f"/v1/asks/{ask['id']}/answer", said, {})).status


async def say_and_wait(wire: Wire, ask: Body, call: Body) -> None:
    await say(wire, ask, decision="allow")
    await ended(wire, call)


@pytest.mark.parametrize("kills", [1, 3])
async def test_an_open_ask_outlives_kills_and_its_answer_lets_the_call_run_exactly_once(
    service: Service, kills: int
) -> None:
    told = Acknowledged()
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told)
    assert (call["status"], call["waiting"], service.effects) == ("pending", "permission", [])
    for _ in range(kills):
        service.kill()
        service.start()

    async with wired(service.port) as wire:
        assert (await wire.get("/v1/asks?status=open")).body["data"] == [ask]
        assert (await wire.get(f"/v1/calls/{call['id']}")).body == call
        assert service.effects == []
        assert await say(wire, ask, decision="allow") == 200
        done = await ended(wire, call)
        assert await say(wire, ask, decision="allow") == 409

    assert (done["status"], done["result"]["output"], service.effects) == ("completed", "once", ["once"])
    assert broken_promises(service.database, service.effects, told) == []


@pytest.mark.parametrize(
    ("point", "marks"), [("reply.after", 1), ("reply.told", 1), ("start.before", 1), ("start.after", 0), ("run", 0)]
)
async def test_a_yes_that_was_committed_counts_after_a_kill_and_is_not_asked_for_again(
    zygote: Zygote, tmp_path: Path, point: str, marks: int
) -> None:
    """Once `running` is committed nobody knows whether the tool has begun, so it is not run again."""
    service, told = Service(zygote, tmp_path / "data"), Acknowledged()
    service.data_dir.mkdir()
    assert service.start_armed(f"{point}:1")
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told)
        with pytest.raises(GONE):
            await say_and_wait(wire, ask, call)
    assert service.ended() == -9
    service.start()

    async with wired(service.port) as wire:
        done = await ended(wire, call)
        asks = (await wire.get("/v1/asks")).body["data"]
    service.kill()
    assert [(one["id"], one["answer"]["decision"]) for one in asks] == [(ask["id"], "allow_once")]
    assert service.effects == ["once"] * marks
    assert done["error"] is None if marks else done["error"]["code"] == "Interrupted"
    assert broken_promises(service.database, service.effects, told) == []


async def test_a_yes_that_was_not_committed_is_asked_for_again(zygote: Zygote, tmp_path: Path) -> None:
    service, told = Service(zygote, tmp_path / "data"), Acknowledged()
    service.data_dir.mkdir()
    assert service.start_armed("reply.before:1")
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told)
        with pytest.raises(GONE):
            await say(wire, ask, decision="allow")
    service.ended()
    service.start()

    async with wired(service.port) as wire:
        assert (await wire.get(f"/v1/asks/{ask['id']}")).body == ask
        assert service.effects == []
        await say(wire, ask, decision="allow")
        assert (await ended(wire, call))["status"] == "completed"
    service.kill()
    assert broken_promises(service.database, service.effects, told) == []


async def test_a_no_after_a_kill_ends_the_call(service: Service) -> None:
    told = Acknowledged()
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told)
    service.kill()
    service.start()

    async with wired(service.port) as wire:
        await say(wire, ask, decision="deny", message="not today")
        done = await ended(wire, call)

    assert done["error"] == {
        "code": "PermissionDenied",
        "message": "The person did not allow escalate once: not today",
        "retryable": False,
        "details": {"blocked": True, "ask": ask["id"], "permission": "escalate", "pattern": "once"},
    }
    assert (done["started_at"], service.effects) == (None, [])
    assert broken_promises(service.database, service.effects, told) == []


async def test_an_ask_whose_time_is_over_when_the_service_comes_back_has_expired(service: Service) -> None:
    told = Acknowledged()
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told)
    service.kill()
    with closing(sqlite3.connect(service.database)) as db, db:  # as if it had been down for so long
        db.execute("UPDATE asks SET expires_at = created_at + 1")
    service.start()

    async with wired(service.port) as wire:
        done = await ended(wire, call)
        over = (await wire.get(f"/v1/asks/{ask['id']}")).body
        late = await say(wire, ask, decision="allow")

    assert (done["error"]["code"], done["error"]["details"]) == ("AskExpired", {"ask": ask["id"]})
    assert (over["status"], over["reason"], late) == ("expired", "No person answered in time.", 409)
    assert service.effects == []
    assert broken_promises(service.database, service.effects, told) == []


async def test_open_questions_outlive_a_kill_and_their_answer_reaches_the_tool(service: Service) -> None:
    told = Acknowledged()
    async with wired(service.port) as wire:
        call, ask = await asked(wire, service.port, told, "request_user_input")
    service.kill()
    service.start()

    async with wired(service.port) as wire:
        assert (await wire.get("/v1/asks?status=open")).body["data"] == [ask]
        assert (await wire.get(f"/v1/calls/{call['id']}")).body == call
        await say(wire, ask, content={"colour": "Blue"})
        done = await ended(wire, call)

    assert (call["waiting"], done["result"]["structured"]) == ("input", {"answers": {"colour": "Blue"}})
    assert broken_promises(service.database, service.effects, told) == []
