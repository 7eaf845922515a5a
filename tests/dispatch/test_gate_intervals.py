"""The gate, proved on the whole line: who was inside with whom is read off recorded intervals, never off a clock.

Toy tools write down the tick of a logical counter when they enter and when they leave. From these intervals
follows all that is promised: reads overlap, a writer is alone in its lane, nobody overtakes a writer that waits,
lane `none` holds nobody, a batch keeps its order.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from app.core.calls import Waiting
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.dispatch.live_calls import LiveCall
from tests.support.services import ADMIN, HANG, Crib, copy_database
from tests.support.toy_tools import Toys

READ, WRITE = Effect.READ, Effect.WRITE
LANES = {"work": "workspace", "work_apart": "session", "work_free": "none"}
STABLE = 30


class Args(BaseModel, extra="forbid"):
    """`holds`: until it is let go; else for so many `beats` of the loop. `calls` are made inside, all at once."""

    name: str
    effect: Effect = READ
    holds: bool = False
    beats: int = 0
    calls: list[tuple[str, dict[str, Any]]] = []


@dataclass(slots=True)
class Interval:
    """When a call was inside, in ticks. `came` is when it was asked for."""

    name: str
    lane: str
    effect: Effect
    came: int
    enter: int
    leave: int = 0

    def overlaps(self, other: "Interval") -> bool:
        return self.enter < other.leave and other.enter < self.leave

    def is_family_of(self, other: "Interval") -> bool:
        """The one made the other, maybe by way of more calls."""
        return self.name.startswith(f"{other.name}.") or other.name.startswith(f"{self.name}.")


class Recorder(Toys):
    """Tools of three lanes that write down when they are inside."""

    def __init__(self) -> None:
        super().__init__()
        self.intervals: dict[str, Interval] = {}
        self.came: dict[str, int] = {}
        self.inside: set[str] = set()
        self._ticks = count(1)

    def tick(self) -> int:
        return next(self._ticks)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (
            _tool("work", self._worker("workspace"), Lane.WORKSPACE),
            _tool("work_apart", self._worker("session"), Lane.SESSION),
            _tool("work_free", self._worker("none"), Lane.NONE),
        )

    def _worker(self, lane: str) -> Callable[[Args, Context], Awaitable[Result]]:
        async def work(args: Args, ctx: Context) -> Result:
            mine = Interval(args.name, lane, args.effect, self.came.get(args.name, 0), self.tick())
            self.inside.add(args.name)
            try:
                await asyncio.gather(*(ctx.call(tool, given) for tool, given in args.calls))
                for _ in range(args.beats):
                    await asyncio.sleep(0)
                if args.holds:
                    await self.go[args.name].wait()
            finally:
                mine.leave = self.tick()
                self.inside.discard(args.name)
                self.intervals[args.name] = mine
            return Result(output=args.name)

        return work


def _tool(name: str, run: Callable[[Args, Context], Awaitable[Result]], lane: Lane) -> Tool:
    return typed(Args, name=name, description="Works.", effect=_effect_of, needs=_no_needs, run=run, lane=lane)


def _effect_of(args: Args) -> Effect:
    return args.effect


def _no_needs(args: Args, scope: PathScope) -> list[Need]:
    return []


class Stage:
    """A house on which calls come and go, and everything comes to rest in between."""

    def __init__(self, crib: Crib, recorder: Recorder) -> None:
        self.crib = crib
        self.recorder = recorder
        self.lives: dict[str, LiveCall] = {}
        self._released: set[str] = set()

    def come(self, tool: str, name: str, effect: Effect, **more: Any) -> LiveCall:
        self.recorder.came[name] = self.recorder.tick()
        self.lives[name] = self.crib.submit(tool, {"name": name, "effect": effect} | more)
        return self.lives[name]

    def batch(self, *items: tuple[str, dict[str, Any]]) -> None:
        asked = [(self.crib.request(tool, arguments), ADMIN) for tool, arguments in items]
        lives = self.crib.services.dispatcher.submit_all(asked)
        self.lives |= {arguments["name"]: live for (_, arguments), live in zip(items, lives, strict=True)}

    async def let_go(self, *names: str) -> None:
        for name in names:
            self._released.add(name)
            self.recorder.go[name].set()
        await self.rest()

    async def rest(self) -> None:
        """Until every call is inside and holds, or waits at the gate, and nothing moves any more."""
        still = 0
        async with asyncio.timeout(HANG):
            while still < STABLE:
                await asyncio.sleep(0)
                still = still + 1 if all(map(self._is_at_rest, self.lives.items())) else 0

    def _is_at_rest(self, item: tuple[str, LiveCall]) -> bool:
        name, live = item
        if live.is_done:
            return True
        is_inside = name in self.recorder.inside and name not in self._released
        return is_inside or (live.call.waiting is Waiting.GATE and live._is_interruptible)

    async def end(self) -> dict[str, Interval]:
        """Let everything end well, and read what was recorded."""
        for name in self.lives:
            self.recorder.go[name].set()
        for live in self.lives.values():
            view = await self.crib.ended(live)
            assert view["error"] is None, view
        assert self.crib.services.dispatcher._gates._gates == {}
        return self.recorder.intervals


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[Stage]:
    recorder = Recorder()
    crib = await Crib(data_dir, recorder).open()
    try:
        yield Stage(crib, recorder)
    finally:
        await crib.close()


@pytest.fixture
async def stage(data_dir: Path) -> AsyncIterator[Stage]:
    async with opened(data_dir) as stage:
        yield stage


def together(intervals: Iterable[Interval]) -> list[tuple[str, str]]:
    """Pairs that broke the law: in one lane at one time, one of them writing, and not one inside the other."""
    return [
        (one.name, other.name)
        for one, other in combinations(intervals, 2)
        if one.lane == other.lane != "none"
        and WRITE in (one.effect, other.effect)
        and one.overlaps(other)
        and not one.is_family_of(other)
    ]


def test_the_law_bites() -> None:
    reader = Interval("r", "workspace", READ, 0, 1, 4)
    writer = Interval("w", "workspace", WRITE, 0, 2, 3)
    child = Interval("w.0", "workspace", WRITE, 0, 5, 6)

    assert together([reader, writer]) == [("r", "w")]
    assert together([reader, Interval("r2", "workspace", READ, 0, 2, 3)]) == []
    assert together([reader, Interval("w", "session", WRITE, 0, 2, 3)]) == []
    assert together([reader, Interval("w", "workspace", WRITE, 0, 5, 6)]) == []
    assert together([Interval("w", "workspace", WRITE, 0, 4, 7), child]) == []
    assert together([Interval("v", "workspace", WRITE, 0, 4, 7), child]) == [("v", "w.0")]


async def test_reads_overlap(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.come("work", name, READ, holds=True)
    await stage.rest()
    assert stage.recorder.inside == {"a", "b", "c"}

    found = await stage.end()

    assert all(one.overlaps(other) for one, other in combinations(found.values(), 2))


async def test_writers_are_alone_one_after_the_other_in_the_order_they_came(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.come("work", name, WRITE, holds=True)
        await stage.rest()
    assert stage.recorder.inside == {"a"}

    await stage.let_go("a")
    assert stage.recorder.inside == {"b"}
    found = await stage.end()

    assert together(found.values()) == []
    assert sorted(found, key=lambda name: found[name].enter) == ["a", "b", "c"]


async def test_no_later_reader_overtakes_a_writer_that_waits(stage: Stage) -> None:
    stage.come("work", "early", READ, holds=True)
    await stage.rest()
    stage.come("work", "writer", WRITE, holds=True)
    await stage.rest()
    for name in ("late", "later"):
        stage.come("work", name, READ, holds=True)
    await stage.rest()
    assert stage.recorder.inside == {"early"}

    await stage.let_go("early")
    assert stage.recorder.inside == {"writer"}
    await stage.let_go("writer")
    assert stage.recorder.inside == {"late", "later"}
    found = await stage.end()

    assert found["early"].leave < found["writer"].enter
    assert found["writer"].leave < min(found["late"].enter, found["later"].enter)
    assert found["late"].overlaps(found["later"])


async def test_a_long_call_in_lane_none_holds_nobody_and_is_held_by_nobody(stage: Stage) -> None:
    stage.come("work", "writer", WRITE, holds=True)
    stage.come("work_free", "long", WRITE, holds=True)
    await stage.rest()
    assert stage.recorder.inside == {"writer", "long"}

    await stage.let_go("writer")
    for number in range(3):
        await stage.crib.ended(stage.come("work", f"w{number}", WRITE))
        await stage.crib.ended(stage.come("work_apart", f"a{number}", WRITE))
    stage.come("work_free", "second", WRITE, holds=True)
    await stage.rest()
    assert stage.recorder.inside == {"long", "second"}
    found = await stage.end()

    assert {name for name in found if found["long"].overlaps(found[name])} == set(found)
    assert together(found.values()) == []


async def test_lanes_do_not_mind_each_other(stage: Stage) -> None:
    stage.come("work", "files", WRITE, holds=True)
    stage.come("work_apart", "repl", WRITE, holds=True)
    await stage.rest()
    assert stage.recorder.inside == {"files", "repl"}

    found = await stage.end()

    assert found["files"].overlaps(found["repl"])


async def test_a_batch_reads_at_once_and_writes_in_order(stage: Stage) -> None:
    effects = {"r0": READ, "r1": READ, "w2": WRITE, "r3": READ, "r4": READ, "w5": WRITE, "w6": WRITE}
    stage.batch(*(("work", {"name": name, "effect": effect, "holds": True}) for name, effect in effects.items()))

    seen = []
    for names in (("r0", "r1"), ("w2",), ("r3", "r4"), ("w5",), ("w6",)):
        await stage.rest()
        seen.append(set(stage.recorder.inside))
        await stage.let_go(*names)
    found = await stage.end()

    assert seen == [{"r0", "r1"}, {"w2"}, {"r3", "r4"}, {"w5"}, {"w6"}]
    assert together(found.values()) == []


@pytest.mark.parametrize("effects", [(WRITE, WRITE), (WRITE, READ), (READ, READ), (READ, WRITE)])
async def test_calls_inside_a_call_wait_neither_for_it_nor_for_who_waits_for_it(
    stage: Stage, effects: tuple[Effect, Effect]
) -> None:
    outer, inner = effects
    children = [("work", {"name": f"p.{n}", "effect": inner, "beats": 3}) for n in range(3)]
    stage.come("work", "gatekeeper", WRITE, holds=True)
    await stage.rest()
    stage.come("work", "p", outer, calls=children)
    await stage.rest()
    stage.come("work", "next", WRITE)
    await stage.rest()
    assert stage.recorder.inside == {"gatekeeper"}

    await stage.let_go("gatekeeper")
    found = await stage.end()

    assert set(found) == {"gatekeeper", "p", "p.0", "p.1", "p.2", "next"}
    assert all(found["p"].overlaps(found[f"p.{n}"]) for n in range(3))
    assert together(interval for name, interval in found.items() if name != "p" or outer is WRITE) == []


Step = tuple[str, str, Effect, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "go"]),
        st.sampled_from(["work", "work", "work_apart", "work_free"]),
        st.sampled_from([READ, READ, WRITE]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=14,
)


class Model:
    """The gate as one would explain it: those who came to a lane, in order, and who of them may be inside."""

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[str, Effect]]] = {lane: [] for lane in LANES.values()}

    def inside(self) -> set[str]:
        found = {name for name, _ in self.lines["none"]}
        for lane in ("workspace", "session"):
            line = self.lines[lane]
            writers = [place for place, (_, effect) in enumerate(line) if effect is WRITE]
            first = writers[0] if writers else len(line)
            found |= {name for name, _ in line[: first or 1]}
        return found

    def leave(self, name: str) -> None:
        for line in self.lines.values():
            line[:] = [one for one in line if one[0] != name]


def in_a_house(template: Path, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def run(data_dir: Path) -> None:
        async with asyncio.timeout(HANG * 6), opened(data_dir) as stage:
            await play(stage)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(copy_database(template, Path(folder) / "data")))


@settings(max_examples=40)
@given(steps=STEPS)
def test_whoever_may_be_inside_is_and_nobody_else(empty_database: Path, steps: list[Step]) -> None:
    in_a_house(empty_database, lambda stage: _follow_model(stage, steps))


async def _follow_model(stage: Stage, steps: list[Step]) -> None:
    model, waiting_since = Model(), dict[str, int]()
    for number, (what, tool, effect, pick) in enumerate(steps):
        inside = sorted(model.inside())
        if what == "come":
            stage.come(tool, f"c{number}", effect, holds=True)
            model.lines[LANES[tool]].append((f"c{number}", effect))
            await stage.rest()
        elif inside:
            model.leave(inside[pick % len(inside)])
            await stage.let_go(inside[pick % len(inside)])
        assert stage.recorder.inside == model.inside()
        for name in set(stage.lives) - stage.recorder.inside - set(stage.recorder.intervals):
            waiting_since.setdefault(name, stage.recorder.tick())
    found = await stage.end()

    assert set(found) == set(stage.lives)
    assert together(found.values()) == []
    assert overtakers(found, waiting_since) == []


def overtakers(found: dict[str, Interval], waiting_since: dict[str, int]) -> list[tuple[str, str]]:
    """Those who came to a lane when a writer waited there already, and entered before it."""
    return [
        (late.name, writer.name)
        for name, since in waiting_since.items()
        if (writer := found[name]).effect is WRITE
        for late in found.values()
        if late.lane == writer.lane and late.came > since and late.enter < writer.enter
    ]


def test_the_law_of_overtaking_bites() -> None:
    writer = Interval("w", "workspace", WRITE, 1, 9, 10)
    late = Interval("r", "workspace", READ, 3, 4, 5)

    assert overtakers({"w": writer, "r": late}, {"w": 2}) == [("r", "w")]
    assert overtakers({"w": writer, "r": late}, {"w": 3}) == []


@st.composite
def works(draw: st.DrawFn, name: str) -> tuple[str, dict[str, Any]]:
    """A call, maybe with calls inside; those of a reader read, because for a writer it would step aside."""
    tool = draw(st.sampled_from(["work", "work", "work_apart", "work_free"]))
    effect = draw(st.sampled_from([READ, WRITE]))
    inner = [READ, WRITE] if effect is WRITE else [READ]
    children = [
        (
            draw(st.sampled_from([tool, "work_free"])),
            {"name": f"{name}.{n}", "effect": draw(st.sampled_from(inner)), "beats": draw(st.integers(0, 3))},
        )
        for n in range(draw(st.integers(0, 2)))
    ]
    return tool, {"name": name, "effect": effect, "beats": draw(st.integers(0, 12)), "calls": children}


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, list[tuple[str, dict[str, Any]]]]]:
    """Batches, many of them of one call, each so many beats after the one before."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 3, 5]), min_size=1, max_size=6))
    return [
        (draw(st.integers(0, 15)), [draw(works(f"b{number}-{n}")) for n in range(size)])
        for number, size in enumerate(sizes)
    ]


@settings(max_examples=40)
@given(crowd=crowds())
def test_a_crowd_of_batches_and_nested_calls_keeps_every_law(
    empty_database: Path, crowd: list[tuple[int, list[tuple[str, dict[str, Any]]]]]
) -> None:
    in_a_house(empty_database, lambda stage: _let_in(stage, crowd))


async def _let_in(stage: Stage, crowd: list[tuple[int, list[tuple[str, dict[str, Any]]]]]) -> None:
    for pause, items in crowd:
        for _ in range(pause):
            await asyncio.sleep(0)
        stage.batch(*items)
    found = await stage.end()

    made = {
        given["name"] for _, items in crowd for _, work in items for given in (work, *(c for _, c in work["calls"]))
    }
    assert set(found) == made
    assert together(found.values()) == []
    assert [pair for _, items in crowd for pair in out_of_order([found[work["name"]] for _, work in items])] == []
    for name, interval in found.items():
        if "." in name:
            parent = found[name.partition(".")[0]]
            assert parent.enter < interval.enter < interval.leave < parent.leave


def out_of_order(batch: list[Interval]) -> list[tuple[str, str]]:
    """Of two calls of a batch in one lane, one of them writing, the first must be out before the second is in."""
    return [
        (first.name, second.name)
        for first, second in combinations(batch, 2)
        if first.lane == second.lane != "none"
        and WRITE in (first.effect, second.effect)
        and not first.leave < second.enter
    ]


def test_the_law_of_order_bites() -> None:
    first, second = Interval("b0-0", "workspace", READ, 0, 3, 4), Interval("b0-1", "workspace", WRITE, 0, 1, 2)

    assert out_of_order([first, second]) == [("b0-0", "b0-1")]
    assert out_of_order([second, first]) == []
