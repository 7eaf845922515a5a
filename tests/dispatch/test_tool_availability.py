"""Whether tools can be used: asked at start, asked again on demand, told in listings and to calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.core.tools import Audience, Ready, Tool
from app.dispatch.tools import availability as probing
from app.dispatch.tools.availability import ToolAvailability
from tests.support.services import HANG, Crib, RunningService, until
from tests.support.toy_tools import Toys


class Machine:
    """What a toy tool depends on."""

    def __init__(self) -> None:
        self.reason: str | None = "The machine is off."
        self.asked: list[Audience] = []
        self.go = asyncio.Event()
        self.go.set()

    async def init(self, audience: Audience) -> Ready:
        self.asked.append(audience)
        await self.go.wait()
        return Ready(reason=self.reason)


def depending(toys: Toys, init: Callable[[Audience], Awaitable[Ready]]) -> Tool:
    [note] = [tool for tool in toys.tools if tool.name == "note"]
    return replace(note, name="depending", init=init)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def probes() -> AsyncIterator[ToolAvailability]:
    probes = ToolAvailability()
    yield probes
    await probes.close()


@pytest.fixture
async def open_crib(crib: Crib, machine: Machine) -> Crib:
    crib.toys.more = [depending(crib.toys, machine.init)]
    return await crib.open()


async def test_a_tool_without_a_question_is_ready_without_asking(probes: ToolAvailability, toys: Toys) -> None:
    echo = toys.tools[0]

    assert probes.is_ready(echo)
    assert await probes.ask(echo) == Ready()


async def test_an_answer_is_kept_until_somebody_asks_anew(
    probes: ToolAvailability, toys: Toys, machine: Machine
) -> None:
    tool = depending(toys, machine.init)

    assert (probes.known(tool), probes.is_ready(tool)) == (None, False)
    await probes.ask(tool)
    assert probes.known(tool) == Ready(reason="The machine is off.")
    machine.reason = None
    assert not probes.is_ready(tool)
    await probes.ask(tool)

    assert probes.is_ready(tool)
    assert len(machine.asked) == 2


async def test_a_tool_in_the_place_of_another_is_asked_itself(
    probes: ToolAvailability, toys: Toys, machine: Machine
) -> None:
    await probes.ask(depending(toys, machine.init))

    async def other(audience: Audience) -> Ready:
        return Ready()

    assert probes.known(depending(toys, other)) is None


async def test_those_who_ask_at_once_share_one_question(probes: ToolAvailability, toys: Toys, machine: Machine) -> None:
    machine.go.clear()
    tool = depending(toys, machine.init)
    asking = [asyncio.create_task(probes.ask(tool)) for _ in range(5)]
    await until(lambda: machine.asked)

    asking[0].cancel()
    machine.go.set()
    async with asyncio.timeout(HANG):
        answers = await asyncio.gather(*asking, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [Ready(reason="The machine is off.")] * 4
    assert len(machine.asked) == 1


async def test_one_that_breaks_or_never_answers_is_not_available_and_says_why(
    probes: ToolAvailability, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "INIT_SECONDS", 0.01)

    async def broken(audience: Audience) -> Ready:
        raise TimeoutError("no answer from the machine")

    async def silent(audience: Audience) -> Ready:
        await asyncio.Event().wait()
        return Ready()

    assert await probes.ask(depending(toys, broken)) == Ready(reason="TimeoutError: no answer from the machine")
    assert await probes.ask(depending(toys, silent)) == Ready(
        reason="It did not say within 0.01 s whether it can be used."
    )


async def test_answers_for_many_audiences_do_not_pile_up(
    probes: ToolAvailability, toys: Toys, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "MAX_ANSWERS", 3)
    tool = depending(toys, machine.init)

    for number in range(5):
        await probes.ask(tool, Audience(session=str(number)))

    kept = [number for number in range(5) if probes.known(tool, Audience(session=str(number)))]
    assert kept == [2, 3, 4]


async def test_tools_are_asked_at_start_and_the_start_does_not_wait_for_them(crib: Crib, machine: Machine) -> None:
    machine.go.clear()
    crib.toys.more = [depending(crib.toys, machine.init)]

    async with asyncio.timeout(HANG):
        await crib.open()
        await until(lambda: machine.asked)
        await crib.close()


async def test_a_call_asks_again_and_is_told_why_not(open_crib: Crib, machine: Machine) -> None:
    await until(lambda: machine.asked)

    refused = await open_crib.run("depending", {"text": "first"})
    machine.reason = None
    done = await open_crib.run("depending", {"text": "second"})
    asked = len(machine.asked)
    again = await open_crib.run("depending", {"text": "third"})

    assert refused["error"] == {
        "code": "ToolUnavailable",
        "message": "depending cannot be used now: The machine is off.",
        "retryable": True,
    }
    assert (done["status"], again["status"]) == ("completed", "completed")
    assert open_crib.toys.notes == ["second", "third"]
    assert len(machine.asked) == asked, "what is known to be ready is not asked"


async def test_what_is_not_known_to_be_ready_has_no_start_in_its_first_commit(open_crib: Crib) -> None:
    view = await open_crib.run("depending")

    assert open_crib.story(view["id"]) == ["call.pending", "call.error"]
    assert view["started_at"] is None


async def test_a_listing_tells_and_asks_again_on_demand(service: RunningService, toys: Toys, machine: Machine) -> None:
    await service.close()
    toys.more = [depending(toys, machine.init)]
    await service.open()

    async def shown(**params: Any) -> tuple[bool, str | None]:
        listed = (await service.client.get("/v1/tools", params=params)).json()["data"]
        [tool] = [tool for tool in listed if tool["name"] == "depending"]
        one = (await service.client.get("/v1/tools/depending")).json()
        assert one == tool
        return tool["available"], tool["reason"]

    assert await shown() == (False, "The machine is off.")
    machine.reason = None
    assert await shown() == (False, "The machine is off.")
    assert await shown(probe=True) == (True, None)
    machine.reason = "Off again."
    assert await shown() == (True, None)
    reloaded = await service.client.post("/v1/tools/reload")
    assert (reloaded.status_code, reloaded.json()) == (200, {"loaded": [], "failed": []})
    assert await shown() == (False, "Off again.")


async def test_a_reason_is_shown_without_secrets(service: RunningService, toys: Toys) -> None:
    await service.client.put("/v1/secrets/TOKEN", json={"value": "canary-in-the-coal-mine"})

    async def telltale(audience: Audience) -> Ready:
        raise RuntimeError("cannot log in with canary-in-the-coal-mine")

    service.services.dispatcher.registry.add(depending(toys, telltale))

    tool = (await service.client.get("/v1/tools/depending")).json()
    call = (await service.client.post("/v1/calls", json={"tool": "depending"})).json()

    assert tool["reason"] == "RuntimeError: cannot log in with [redacted]"
    assert "canary" not in call["error"]["message"]
