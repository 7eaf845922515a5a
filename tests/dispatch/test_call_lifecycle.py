"""Whatever comes in whatever order, calls live as they were promised to: a small model, and the house beside it."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from app.store.calls import Claim
from app.store.events import EventFilter
from tests.support.services import ADMIN, HANG, Crib, Frame, copy_database, frames_of, until
from tests.support.toy_tools import Toys

LEGAL = re.compile("pending( waiting)*( running)?( completed| error)?")
State = tuple[str, str | None, str | None]
"""Status, code of the error, output."""


@dataclass(slots=True)
class Expected:
    """A call as it should be. A writer waits for all before it in its lane, a reader for the writers before it."""

    tool: str
    name: str
    in_lane: bool = True
    writes: bool = False
    holds: bool = False
    end: State = ("completed", None, "")
    state: State = ("pending", None, None)
    runs: int = 0

    @property
    def status(self) -> str:
        return self.state[0]

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "running")

    def stop(self, code: str) -> None:
        """It keeps what it had said."""
        self.state = ("error", code, f"{self.name} says" if self.status == "running" else None)


@dataclass(slots=True)
class Model:
    """All that was promised about calls, without a disk, a loop or a race."""

    calls: dict[str, Expected] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)

    def settle(self) -> None:
        """Let everything happen that can."""
        before = None
        while before != (before := [call.state for call in self.calls.values()]):
            for call in self.calls.values():
                self._advance(call)

    def stop_all(self) -> None:
        """The service is gone: what ran is interrupted, what waited waits on."""
        for call in self.calls.values():
            if call.status == "running":
                call.stop("Interrupted")

    def _advance(self, call: Expected) -> None:
        if call.status == "pending" and self._may_run(call):
            call.state = ("running", None, None)
            call.runs += 1
        if call.status == "running" and (not call.holds or call.name in self.released):
            call.state = call.end

    def _may_run(self, call: Expected) -> bool:
        before = [other for other in self._before(call) if other.in_lane and other.is_open]
        return not call.in_lane or not any(call.writes or other.writes for other in before)

    def _before(self, call: Expected) -> list[Expected]:
        calls = list(self.calls.values())
        return calls[: calls.index(call)]


class Life(RuleBasedStateMachine):
    """A house on a data directory of its own; after every step its records are what the model says."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.toys = Toys()
        self.crib = Crib(data_dir, self.toys)
        self.model = Model()
        self.heard: list[Frame] = []
        self.watching: asyncio.Task[None] | None = None
        self.is_sound = True
        self.do(self.crib.open())

    @rule(kind=st.sampled_from(["echo", "note", "fail", "none"]))
    def submit_one_that_ends_by_itself(self, kind: str) -> None:
        name = f"c{len(self.model.calls)}"
        match kind:
            case "echo":
                call = Expected("echo", name, end=("completed", None, name))
            case "note":
                call = Expected("note", name, writes=True, end=("completed", None, name))
            case "fail":
                call = Expected("fail", name, in_lane=False, end=("error", "ExitCode:3", name))
            case _:
                call = Expected("none", name, state=("error", "UnknownTool", None))
        self.do(self.submit(call))

    @rule(tool=st.sampled_from(["wait", "wait", "wait_free"]))
    def submit_a_reader_that_holds(self, tool: str) -> None:
        name = f"c{len(self.model.calls)}"
        self.do(self.submit(Expected(tool, name, tool == "wait", holds=True, end=("completed", None, name))))

    @rule()
    def submit_a_writer_that_holds(self) -> None:
        name = f"c{len(self.model.calls)}"
        self.do(self.submit(Expected("wait", name, writes=True, holds=True, end=("completed", None, name))))

    @precondition(lambda self: self.model.calls)
    @rule(data=st.data())
    def send_one_again(self, data: st.DataObject) -> None:
        self.do(self.repeat(data.draw(st.sampled_from(list(self.model.calls)))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        name = self.model.calls[data.draw(st.sampled_from(self.held))].name
        self.model.released.add(name)
        self.toys.go[name].set()
        self.do(self.agree())

    @precondition(lambda self: self.left_open)
    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        self.do(self.cancel(data.draw(st.sampled_from(self.left_open))))

    @rule(is_crash=st.booleans())
    def end_and_start(self, is_crash: bool) -> None:
        self.do(self.restart(self.crib.crash() if is_crash else self.crib.close()))

    @rule()
    def look_on_or_away(self) -> None:
        self.do(self.look_on() if self.watching is None else self.stop_watching(is_cut=True))

    def teardown(self) -> None:
        try:
            if self.is_sound:
                self.do(self.end())
        finally:
            self.runner.run(self.crib.close())
            self.runner.close()

    @property
    def left_open(self) -> list[str]:
        return [id for id, call in self.model.calls.items() if call.is_open]

    @property
    def held(self) -> list[str]:
        return [id for id in self.left_open if self.model.calls[id].holds]

    def do(self, work: Coroutine[Any, Any, object]) -> None:
        self.is_sound = False
        self.runner.run(work)
        self.is_sound = True

    async def submit(self, call: Expected) -> None:
        live = self.crib.services.dispatcher.submit(
            self.crib.request(call.tool, arguments(call)), ADMIN, claim=Claim(call.name, call.name)
        )
        await live.wait_open()
        self.model.calls[live.call.id] = call
        await self.agree()

    async def repeat(self, id: str) -> None:
        """The same key again gives the same call, and none is made."""
        call = self.model.calls[id]
        live = self.crib.services.dispatcher.submit(
            self.crib.request(call.tool, arguments(call)), ADMIN, claim=Claim(call.name, call.name)
        )
        await live.wait_open()
        assert live.record.claimed is not None
        assert live.record.claimed.call == id
        await self.agree()

    async def cancel(self, id: str) -> None:
        live = self.crib.services.dispatcher.live_calls.get(id)
        assert live is not None
        await self.crib.cancel(live)
        self.model.calls[id].stop("Canceled")
        await self.agree()

    async def restart(self, stopping: Coroutine[Any, Any, None]) -> None:
        await stopping
        await self.stop_watching(is_cut=False)
        self.model.stop_all()
        await self.crib.open()
        await self.agree()

    async def look_on(self) -> None:
        """From behind the last event that was heard."""
        after = self.heard[-1].id if self.heard else 0
        wanted = EventFilter(principal=None)
        stream = self.crib.services.hub.follow(self.crib.services.engine, wanted, after)

        async def listen() -> None:
            async for frames in stream:
                self.heard += frames_of(frames)

        self.watching = asyncio.create_task(listen())
        await self.agree()

    async def stop_watching(self, *, is_cut: bool) -> None:
        if self.watching is None:
            return
        if is_cut:
            self.watching.cancel()
        with suppress(asyncio.CancelledError):
            await self.watching
        self.watching = None

    async def agree(self) -> None:
        """The records come to say what the model says, and everything that is true at all times is true."""
        self.model.settle()
        wanted = {id: call.state for id, call in self.model.calls.items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG):
                while self.recorded() != wanted or not self.has_caught_up():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # not 0: the writer's thread needs the time that looking takes
        assert self.recorded() == wanted
        assert self.has_caught_up()
        assert Counter(line for line in self.toys.log if line.endswith(" in")) + Counter(self.toys.notes) == self.runs()
        events = self.crib.events()
        for id in self.model.calls:
            story = [event["type"].removeprefix("call.") for event in events if event["call"] == id]
            assert LEGAL.fullmatch(" ".join(story))
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [frame.id for frame in self.heard] == list(range(1, len(self.heard) + 1))

    def recorded(self) -> dict[str, State | None]:
        """What the records say, once those who wait stand at the gate, and those who run have said what they say."""
        query = "SELECT calls.*, EXISTS (SELECT 1 FROM outputs WHERE call = id) AS has_said FROM calls ORDER BY id"
        return {row["id"]: state_of(row) if self.is_at_rest(row) else None for row in self.crib.rows(query)}

    def is_at_rest(self, row: dict[str, Any]) -> bool:
        live = self.crib.services.dispatcher.live_calls.get(row["id"])
        match row["status"]:
            case "pending":
                return row["waiting"] == "gate" and live is not None and live._is_interruptible
            case "running":
                return bool(row["has_said"])
            case _:
                return live is None

    def has_caught_up(self) -> bool:
        [counted] = self.crib.rows("SELECT count(*) AS events FROM events")
        return self.watching is None or len(self.heard) == counted["events"]

    def runs(self) -> "Counter[str]":
        """How often each tool that can be seen running has run: never more than once."""
        counted = {"wait": "{} in", "wait_free": "{} in", "note": "{}"}
        calls = [call for call in self.model.calls.values() if call.tool in counted and call.runs]
        return Counter({counted[call.tool].format(call.name): call.runs for call in calls})

    async def end(self) -> None:
        """Everything is let go; each call has its one end, and who watched again and again has heard all of it."""
        for call in self.model.calls.values():
            self.model.released.add(call.name)
            self.toys.go[call.name].set()
        await self.agree()
        if self.watching is None:
            await self.look_on()
        assert [self.crib.end(id)[0] for id in self.model.calls] == [call.status for call in self.model.calls.values()]
        assert all(call.runs <= 1 for call in self.model.calls.values())
        assert [frame.event for frame in self.heard] == [event["type"] for event in self.crib.events()]
        await until(lambda: len(self.crib.services.dispatcher.live_calls) == 0)
        assert self.crib.services.dispatcher._gates._gates == {}
        await self.stop_watching(is_cut=True)


def arguments(call: Expected) -> dict[str, Any]:
    match call.tool:
        case "wait" | "wait_free":
            return {"name": call.name, "effect": "write" if call.writes else "read", "say": f"{call.name} says"}
        case "fail":
            return {"output": call.name}
        case "none":
            return {}
        case _:
            return {"text": call.name}


def state_of(row: dict[str, Any]) -> State:
    result, error = (row[name] and json.loads(row[name]) for name in ("result", "error"))
    return row["status"], error and error["code"], result and result["output"]


def test_calls_live_as_the_model_says(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    class Fresh(Life):
        def __init__(self) -> None:
            super().__init__(copy_database(empty_database, tmp_path_factory.mktemp("life") / "data"))

    run_state_machine_as_test(
        Fresh,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            phases=[
                Phase.explicit,
                Phase.reuse,
                Phase.generate,
            ],  # what fails waits long; shrinking would repeat it
            suppress_health_check=list(HealthCheck),
        ),
    )
