"""What is counted of the calls, by the real line."""

import asyncio
import json

import pytest

from app.core.calls import Call, Status, Waiting
from app.core.errors import CallError
from app.dispatch import call_stats as ledgers
from app.dispatch.call_stats import CallStats
from app.dispatch.tools.registry import Registry
from app.store.calls import Claim
from tests.support.services import ADMIN, HANG, Crib
from tests.support.toy_tools import ToyHook, Toys


def failed(code: str) -> CallError:
    error = CallError("It went wrong.")
    error.code = code
    return error


def call_of(tool: str, status: Status = Status.ERROR, duration_us: int | None = None) -> Call:
    return Call("call_1", "ada", tool, 0, status=status, duration_us=duration_us)


@pytest.fixture
def ledger(toys: Toys) -> CallStats:
    return CallStats(Registry(toys.tools))


async def test_every_end_is_counted_once_by_tool_status_and_code(crib: Crib) -> None:
    await crib.open()

    for _ in range(3):
        await crib.run("echo", {"text": "x"})
    await crib.run("fail", {"code": "ExitCode:3"})
    await crib.run("fail", {"code": "ExitCode:4"})
    await crib.run("fail", {"code": "ENOENT"})
    await crib.run("echo", {"nonsense": 1})
    await crib.run("bug")

    assert dict(crib.services.call_stats.ends) == {
        ("echo", "completed", ""): 3,
        ("echo", "error", "InvalidArgs"): 1,
        ("fail", "error", "ExitCode"): 2,
        ("fail", "error", "ENOENT"): 1,
        ("bug", "error", "Internal"): 1,
    }


async def test_only_calls_that_started_have_a_duration_and_it_is_the_calls_own(crib: Crib) -> None:
    await crib.open()

    view = await crib.run("echo", {"text": "x"})
    await crib.run("echo", {"nonsense": 1})
    await crib.run("nowhere")

    durations = crib.services.call_stats.durations
    assert {tool: tally.count for tool, tally in durations.items()} == {"echo": 1}
    assert durations["echo"].sum == pytest.approx(view["duration_ms"] / 1000)


async def test_a_call_that_walks_stage_by_stage_is_counted_like_any_other(crib: Crib) -> None:
    crib.hooks.append(ToyHook("hook"))
    await crib.open()

    await crib.run("echo", {"text": "x"})
    await crib.run("relay", {"tool": "echo"})

    assert dict(crib.services.call_stats.ends) == {("echo", "completed", ""): 2, ("relay", "completed", ""): 1}


async def test_names_a_model_makes_up_are_one_unknown_tool(crib: Crib) -> None:
    await crib.open()

    for number in range(20):
        await crib.run(f"made_up_{number}")

    assert dict(crib.services.call_stats.ends) == {("unknown", "error", "UnknownTool"): 20}
    assert crib.services.call_stats.durations == {}


async def test_a_repeat_of_a_call_is_not_counted(crib: Crib) -> None:
    await crib.open()
    claim = Claim("key", "digest")

    for tool in ("echo", "nowhere"):
        for _ in range(2):
            live = crib.services.dispatcher.submit(crib.request(tool), ADMIN, claim=claim)
            async with asyncio.timeout(HANG):
                await live.wait()

    assert dict(crib.services.call_stats.ends) == {("echo", "completed", ""): 1}


async def test_an_end_that_could_not_be_written_is_not_counted(crib: Crib) -> None:
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    crib.change("UPDATE calls SET owner = 'another'")

    crib.toys.go["wait"].set()
    async with asyncio.timeout(HANG):
        await live.wait()

    assert live.record.failure is not None
    assert dict(crib.services.call_stats.ends) == {}


async def test_calls_buried_at_the_next_start_are_counted_there(crib: Crib) -> None:
    await crib.open()
    crib.submit("wait")
    await crib.started("wait")
    await crib.crash()

    await crib.open()

    assert dict(crib.services.call_stats.ends) == {("wait", "error", "Interrupted"): 1}
    assert crib.services.call_stats.durations == {}


def test_the_number_of_codes_is_bounded_and_those_known_go_on_being_counted(ledger: CallStats) -> None:
    for number in range(ledgers.MAX_CODES * 3):
        ledger.record(call_of("echo"), failed(f"Code{number}"))
    ledger.record(call_of("echo"), failed("Code0"))

    codes = {code: count for (_, _, code), count in ledger.ends.items()}
    assert len(codes) == ledgers.MAX_CODES + 1
    assert (codes["Code0"], codes["other"]) == (2, ledgers.MAX_CODES * 2)


@pytest.mark.parametrize("code", ["", "x" * 49, "a\nb", "ÄHM", "a\ud800", 'say "hi"', "a b"])
def test_a_code_that_is_no_plain_word_is_other(ledger: CallStats, code: str) -> None:
    ledger.record(call_of("echo"), failed(code))

    assert dict(ledger.ends) == {("echo", "error", "other"): 1}


async def test_what_a_live_call_waits_for_is_known_in_memory_as_in_the_store(crib: Crib) -> None:
    await crib.open()
    first = crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("wait", {"name": "second", "effect": "write"})

    await crib.at_the_gate(second)
    assert (first.call.waiting, second.call.waiting) == (None, Waiting.GATE)
    crib.toys.go["first"].set()
    await crib.started("second")

    assert second.call.waiting is None
    crib.toys.go["second"].set()
    assert (await crib.ended(second))["waiting"] is None


async def test_a_call_stopped_at_the_gate_waits_for_nothing_any_more(crib: Crib) -> None:
    await crib.open()
    crib.submit("wait", {"name": "first", "effect": "write"})
    await crib.started("first")
    second = crib.submit("wait", {"name": "second", "effect": "write"})
    await crib.at_the_gate(second)

    await crib.cancel(second)

    assert second.call.waiting is None
    assert json.loads(second.call.error or "")["code"] == "Canceled"
    assert dict(crib.services.call_stats.ends) == {("wait", "error", "Canceled"): 1}
