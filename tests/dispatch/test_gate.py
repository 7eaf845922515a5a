"""The gate: readers together, a writer alone, all in the order they came."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import Overloaded
from app.core.tools import Effect
from app.dispatch.gate import BatchOrder, Gate, GateHold, Gates

READ, WRITE = Effect.READ, Effect.WRITE


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Visitors:
    """Tasks that enter a gate, write down that they are in, and leave when told."""

    def __init__(self, enter: Callable[[Effect], Coroutine[Any, Any, None]], leave: Callable[[Effect], None]) -> None:
        self._enter = enter
        self._leave = leave
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._go: dict[str, asyncio.Event] = {}
        self.inside: list[str] = []

    def come(self, name: str, effect: Effect) -> None:
        self._go[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._visit(name, effect))

    async def _visit(self, name: str, effect: Effect) -> None:
        await self._enter(effect)
        self.inside.append(name)
        try:
            await self._go[name].wait()
        finally:
            self.inside.remove(name)
            self._leave(effect)

    def go(self, name: str) -> None:
        self._go[name].set()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values(), timeout=5)


async def test_a_writer_waits_for_readers_and_later_readers_wait_for_it() -> None:
    gate = Gate()
    visitors = Visitors(gate.enter, gate.leave)

    visitors.come("early", READ)
    visitors.come("beside", READ)
    visitors.come("writer", WRITE)
    visitors.come("late", READ)
    await settle()
    assert visitors.inside == ["early", "beside"]
    visitors.go("early")
    await settle()
    assert visitors.inside == ["beside"]
    visitors.go("beside")
    await settle()
    assert visitors.inside == ["writer"]
    visitors.go("writer")
    await settle()
    assert visitors.inside == ["late"]
    await visitors.end()
    assert gate.is_idle


async def test_those_who_wait_enter_in_the_order_they_came() -> None:
    gate = Gate()
    visitors = Visitors(gate.enter, gate.leave)
    names = ["w1", "r1", "r2", "w2", "w3", "r3"]
    for name in names:
        visitors.come(name, WRITE if name[0] == "w" else READ)

    seen = []
    for name in names:
        await settle()
        seen.append(list(visitors.inside))
        visitors.go(name)

    assert seen == [["w1"], ["r1", "r2"], ["r2"], ["w2"], ["w3"], ["r3"]]
    await visitors.end()


async def test_trying_to_enter_never_overtakes_somebody_who_waits() -> None:
    gate = Gate()
    assert gate.try_enter(READ)
    visitors = Visitors(gate.enter, gate.leave)
    visitors.come("writer", WRITE)
    await settle()

    assert not gate.try_enter(READ)
    assert not gate.try_enter(WRITE)
    assert gate.try_enter(READ, beside=True)

    gate.leave(READ)
    gate.leave(READ)
    await settle()
    assert visitors.inside == ["writer"]
    assert not gate.try_enter(READ, beside=True)
    await visitors.end()


async def test_one_who_gives_up_waiting_lets_those_behind_pass() -> None:
    gate = Gate()
    visitors = Visitors(gate.enter, gate.leave)
    visitors.come("reader", READ)
    visitors.come("writer", WRITE)
    visitors.come("behind", READ)
    await settle()

    visitors.cancel("writer")
    await settle()

    assert visitors.inside == ["reader", "behind"]
    await visitors.end()
    assert gate.is_idle


@pytest.mark.parametrize("is_left_first", [True, False])
async def test_one_who_gives_up_in_the_tick_of_its_turn_leaves_nothing_behind(is_left_first: bool) -> None:
    gate = Gate()
    visitors = Visitors(gate.enter, gate.leave)
    assert gate.try_enter(WRITE)
    visitors.come("second", WRITE)
    visitors.come("third", READ)
    await settle()

    if is_left_first:
        gate.leave(WRITE)
        visitors.cancel("second")
    else:
        visitors.cancel("second")
        gate.leave(WRITE)
    await settle()

    assert visitors._tasks["second"].cancelled()
    assert visitors.inside == ["third"]
    await visitors.end()
    assert gate.is_idle


class Model:
    """The gate as one would explain it: a list of those who came, and who of them may be inside."""

    def __init__(self) -> None:
        self.line: list[tuple[str, Effect]] = []

    @property
    def inside(self) -> set[str]:
        found: set[str] = set()
        for place, (name, effect) in enumerate(self.line):
            if effect is WRITE:
                return found if place else {name}
            found.add(name)
        return found


Step = tuple[str, Effect, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "cancel", "try"]),
        st.sampled_from([READ, WRITE]),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_the_gate_does_what_its_model_does(steps: list[Step]) -> None:
    asyncio.run(_follow_model(steps))


async def _follow_model(steps: list[Step]) -> None:
    gate, model = Gate(), Model()
    visitors = Visitors(gate.enter, gate.leave)
    for number, (what, effect, pick, is_rushed) in enumerate(steps):
        name = model.line[pick % len(model.line)][0] if model.line else ""
        if what == "come":
            visitors.come(f"v{number}", effect)
            await asyncio.sleep(0)  # it is in the line now
            model.line.append((f"v{number}", effect))
        elif what == "try":
            could = not model.line or (effect is READ and all(e is READ for _, e in model.line))
            if is_rushed:
                await settle()
                is_in = gate.try_enter(effect)
                assert is_in == could
                if is_in:
                    gate.leave(effect)
        elif name and what == "cancel":
            visitors.cancel(name)
            model.line = [item for item in model.line if item[0] != name]
        elif name and name in model.inside:
            visitors.go(name)
            model.line = [item for item in model.line if item[0] != name]
        if not is_rushed:
            await settle()
            assert set(visitors.inside) == model.inside
    await settle()
    assert set(visitors.inside) == model.inside
    if steps and visitors._tasks:
        await visitors.end()
    assert gate.is_idle


class Family:
    """Passes of one lane, held by name until they are let go."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.log: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.passes: dict[str, GateHold] = {}

    def come(self, name: str, effect: Effect, under: str | None = None) -> None:
        self._go[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, effect, self.passes[under] if under else None))

    async def _hold(self, name: str, effect: Effect, held: GateHold | None) -> None:
        async with self.gates.enter("lane", effect, held) as mine:
            self.passes[name] = mine
            self.log.append(f"{name} in")
            await self._go[name].wait()
            self.log.append(f"{name} out")

    async def go(self, *names: str) -> None:
        for name in names:
            self._go[name].set()
            await settle()

    async def come_back(self, *names: str) -> None:
        """What a parent does when its child has ended."""
        for name in names:
            self.tasks[f"return of {name}"] = asyncio.create_task(self.passes[name].come_back())
            await settle()

    async def end(self, *names: str) -> None:
        await self.go(*names)
        async with asyncio.timeout(20):
            for task in self.tasks.values():
                await asyncio.wait([task])
        assert self.gates._gates == {}


@pytest.fixture
def family() -> Family:
    return Family(Gates(queue_seconds=60))


async def test_a_child_works_inside_its_writing_parents_pass(family: Family) -> None:
    family.come("parent", WRITE)
    await settle()
    family.come("outsider", READ)
    family.come("child", WRITE, "parent")
    family.come("brother", READ, "parent")
    await settle()
    assert family.log == ["parent in", "child in"]

    await family.go("child")
    await family.go("brother")
    assert family.log == ["parent in", "child in", "child out", "brother in", "brother out"]
    await family.go("parent")
    assert family.log[-2:] == ["parent out", "outsider in"]
    await family.end("outsider")


async def test_a_reading_child_enters_beside_its_reading_parent_though_a_writer_waits(family: Family) -> None:
    family.come("parent", READ)
    await settle()
    family.come("writer", WRITE)
    await settle()

    family.come("child", READ, "parent")
    await settle()

    assert family.log == ["parent in", "child in"]
    await family.go("parent")
    assert "writer in" not in family.log
    await family.go("child")
    assert family.log[-1] == "writer in"
    await family.end("writer")


async def test_a_reading_parent_steps_aside_for_its_writing_child(family: Family) -> None:
    family.come("parent", READ)
    family.come("other", READ)
    await settle()
    family.come("child", WRITE, "parent")
    await settle()
    assert family.log == ["parent in", "other in"]

    await family.go("other")
    assert family.log[-1] == "child in"
    assert not family.passes["parent"].is_held
    await family.go("child")
    await family.come_back("parent")
    assert family.passes["parent"].is_held
    await family.end("parent")


async def test_a_parent_that_came_back_keeps_writers_out_again(family: Family) -> None:
    family.come("parent", READ)
    await settle()
    family.come("child", WRITE, "parent")
    await settle()
    await family.go("child")
    await family.come_back("parent")

    family.come("outsider", WRITE)
    await settle()
    assert family.log == ["parent in", "child in", "child out"]

    await family.go("parent")
    assert family.log[-1] == "outsider in"
    await family.end("outsider")


async def test_a_sibling_that_reads_keeps_a_sibling_that_writes_waiting(family: Family) -> None:
    family.come("parent", READ)
    await settle()
    family.come("reader", READ, "parent")
    await settle()
    family.come("writer", WRITE, "parent")
    await settle()
    assert family.log == ["parent in", "reader in"]

    family.come("late", READ, "parent")
    await settle()
    assert family.log == ["parent in", "reader in"]
    await family.go("reader")
    assert family.log[-1] == "writer in"
    await family.go("writer")
    assert family.log[-1] == "late in"
    await family.end("late", "parent")


@pytest.mark.parametrize("top", [READ, WRITE])
async def test_a_writing_grandchild_of_readers_does_not_wait_for_its_own_forebears(family: Family, top: Effect) -> None:
    family.come("grandparent", top)
    await settle()
    family.come("parent", READ, "grandparent")
    await settle()
    family.come("child", WRITE, "parent")
    await settle()

    assert family.log == ["grandparent in", "parent in", "child in"]
    family.come("outsider", READ)
    await settle()
    assert family.log[-1] == "child in"
    await family.go("child")
    await family.end("parent", "grandparent", "outsider")


async def test_forebears_come_back_together_though_a_writer_waits(family: Family) -> None:
    family.come("grandparent", READ)
    await settle()
    family.come("parent", READ, "grandparent")
    await settle()
    family.come("child", WRITE, "parent")
    await settle()
    family.come("brother", READ, "grandparent")
    family.come("outsider", WRITE)
    family.come("late", READ)
    await settle()
    assert family.log == ["grandparent in", "parent in", "child in"]

    await family.go("child")
    await family.come_back("parent")
    assert family.log[-2:] == ["child out", "outsider in"]
    await family.go("outsider")
    assert set(family.log[-2:]) == {"late in", "brother in"}
    assert [family.passes[name].is_held for name in ("grandparent", "parent")] == [True, True]
    await family.end("brother", "late", "parent", "grandparent")


async def test_a_parent_that_returns_first_waits_for_the_grandparent_others_need_aside(family: Family) -> None:
    family.come("grandparent", READ)
    await settle()
    for name in ("p1", "p2"):
        family.come(name, READ, "grandparent")
        await settle()
    for name in ("p1", "p2"):
        family.come(f"child of {name}", WRITE, name)
        await settle()
    family.come("outsider", WRITE)
    await settle()
    assert family.log[-1] == "child of p1 in"

    await family.go("child of p1")
    await family.come_back("p1")
    await family.go("child of p2")
    await family.come_back("p2")
    await family.go("outsider")

    assert [family.passes[name].is_held for name in ("grandparent", "p1", "p2")] == [True, True, True]
    await family.end("p1", "p2", "grandparent")


async def test_two_reading_parents_with_writing_children_take_turns(family: Family) -> None:
    for parent in ("p1", "p2"):
        family.come(parent, READ)
    await settle()
    for parent in ("p1", "p2"):
        family.come(f"child of {parent}", WRITE, parent)
    await settle()
    assert family.log == ["p1 in", "p2 in", "child of p1 in"]

    await family.go("child of p1")
    assert family.log[-1] == "child of p2 in"
    await family.come_back("p1")
    assert not family.passes["p1"].is_held
    await family.go("child of p2")
    await family.come_back("p2")
    assert [family.passes[name].is_held for name in ("p1", "p2")] == [True, True]
    await family.end("p1", "p2")


async def test_a_parent_that_left_while_aside_does_not_come_back(family: Family) -> None:
    family.come("parent", READ)
    await settle()
    family.come("child", WRITE, "parent")
    await settle()

    await family.go("parent")
    await family.go("child")
    await family.come_back("parent")

    assert not family.passes["parent"].is_held
    await family.end()


async def test_a_child_canceled_at_the_gate_gives_its_parent_the_lane_back(family: Family) -> None:
    family.come("parent", READ)
    family.come("other", READ)
    await settle()
    family.come("child", WRITE, "parent")
    await settle()

    family.tasks["child"].cancel()
    await family.come_back("parent")

    assert family.passes["parent"].is_held
    family.come("writer", WRITE)
    await family.go("other")
    assert "writer in" not in family.log
    await family.end("parent", "writer")


async def test_a_parent_aside_twice_comes_back_once(family: Family) -> None:
    family.come("parent", READ)
    await settle()
    for name in ("one", "two", "three"):
        family.come(name, WRITE, "parent")
    await settle()
    assert family.log == ["parent in", "one in"]
    family.tasks["two"].cancel()
    await family.go("one")
    await family.come_back("parent")
    assert not family.passes["parent"].is_held
    await family.go("three")
    await family.come_back("parent")

    assert family.passes["parent"].is_held
    await family.end("parent")


async def test_lanes_do_not_wait_for_each_other() -> None:
    gates = Gates(queue_seconds=60)

    async with AsyncExitStack() as stack, asyncio.timeout(20):
        await stack.enter_async_context(gates.enter("one", WRITE, None))
        await stack.enter_async_context(gates.enter("two", WRITE, None))
        assert gates.try_enter("one", READ, None) is None
    assert gates._gates == {}


async def test_waiting_for_a_lane_is_bounded() -> None:
    gates = Gates(queue_seconds=0.01)
    held = gates.try_enter("lane", WRITE, None)
    assert held is not None

    with pytest.raises(Overloaded, match=r"Other calls kept this workspace busy for 0\.01 s; try again later\."):
        async with gates.enter("lane", READ, None):
            raise AssertionError("nobody gets here")

    held.leave()
    assert gates.try_enter("lane", WRITE, None) is not None


async def test_a_timeout_of_what_is_done_inside_is_not_taken_for_the_queues() -> None:
    gates = Gates(queue_seconds=60)

    with pytest.raises(TimeoutError):
        async with gates.queue_timeout():
            raise TimeoutError


async def test_leaving_twice_is_leaving_once() -> None:
    gates = Gates(queue_seconds=60)
    one, two = gates.try_enter("lane", READ, None), gates.try_enter("lane", READ, None)
    assert one is not None
    assert two is not None

    one.leave()
    one.leave()

    assert gates.try_enter("lane", WRITE, None) is None
    two.leave()
    assert gates.try_enter("lane", WRITE, None) is not None


async def test_in_a_batch_a_writer_waits_for_all_before_it_in_its_lane() -> None:
    order = BatchOrder()
    first, second, writer, late = (order.next() for _ in range(4))
    first.declare("lane", READ)
    second.declare("lane", READ)
    writer.declare("lane", WRITE)
    late.declare("lane", READ)

    assert (first.is_clear, second.is_clear, writer.is_clear, late.is_clear) == (True, True, False, False)
    first.leave()
    assert not writer.is_clear
    second.leave()
    assert (writer.is_clear, late.is_clear) == (True, False)
    writer.leave()
    assert late.is_clear


async def test_in_a_batch_other_lanes_and_no_lane_do_not_wait() -> None:
    order = BatchOrder()
    writer, elsewhere, nowhere = (order.next() for _ in range(3))
    writer.declare("lane", WRITE)
    elsewhere.declare("other", WRITE)
    nowhere.declare(None, WRITE)

    assert (writer.is_clear, elsewhere.is_clear, nowhere.is_clear) == (True, True, True)


async def test_in_a_batch_one_whose_lane_is_not_known_yet_is_waited_for() -> None:
    order = BatchOrder()
    thinking, reader, nowhere = (order.next() for _ in range(3))
    reader.declare("lane", READ)
    nowhere.declare(None, READ)
    waiting = asyncio.create_task(reader.clear())
    await settle()

    assert (reader.is_clear, nowhere.is_clear, waiting.done()) == (False, True, False)
    async with asyncio.timeout(20):
        await nowhere.clear()
    thinking.declare("lane", READ)
    await settle()
    assert (reader.is_clear, waiting.done()) == (True, True)


async def test_in_a_batch_one_that_failed_before_it_was_known_holds_nobody() -> None:
    order = BatchOrder()
    failed, writer = order.next(), order.next()
    writer.declare("lane", WRITE)
    waiting = asyncio.create_task(writer.clear())
    await settle()
    assert not waiting.done()

    failed.leave()
    await settle()

    assert waiting.done()
    assert writer.is_clear


@dataclass(eq=False)
class Member:
    """One of a tree of holders: works, lets its children work at once, works again."""

    effect: Effect
    children: list["Member"] = field(default_factory=list)
    parent: "Member | None" = None
    mine: GateHold | None = None

    def is_kin(self, other: "Member") -> bool:
        return other in self.forebears() or self in other.forebears()

    def forebears(self) -> list["Member"]:
        return [self.parent, *self.parent.forebears()] if self.parent else []


class Tribe:
    """Many trees in one lane; whoever works checks that it may."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.gates = Gates(queue_seconds=60)
        self.members: list[Member] = []

    def grow(self, depth: int, parent: Member | None = None) -> Member:
        member = Member(self.dice.choice([READ, READ, WRITE]), parent=parent)
        self.members.append(member)
        if depth:
            member.children = [self.grow(depth - 1, member) for _ in range(self.dice.randrange(3))]
        return member

    async def live(self, member: Member) -> None:
        held = member.parent.mine if member.parent else None
        async with self.gates.enter("lane", member.effect, held) as member.mine:
            await self.work(member)
            results = await asyncio.gather(*(self.run(child) for child in member.children), return_exceptions=True)
            assert failures(results) == []
            await member.mine.come_back()
            await self.work(member)
        member.mine = None

    async def run(self, member: Member) -> None:
        """A task of its own, as each call has; some are canceled somewhere on their way."""
        task = asyncio.create_task(self.live(member))
        try:
            if self.dice.random() < 0.15:
                for _ in range(self.dice.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            member.mine = None
        await task

    async def work(self, member: Member) -> None:
        for _ in range(self.dice.randrange(4)):
            self.check(member)
            await asyncio.sleep(0)

    def check(self, member: Member) -> None:
        assert member.mine is not None
        assert member.mine.is_held
        for other in self.members:
            if other is not member and other.mine and other.mine.is_held and not other.is_kin(member):
                assert (member.effect, other.effect) == (READ, READ)


def failures(results: list[BaseException | None]) -> list[BaseException]:
    return [result for result in results if result is not None and not isinstance(result, asyncio.CancelledError)]


async def test_trees_of_holders_never_write_beside_strangers_and_never_wait_for_themselves() -> None:
    for seed in range(60):
        tribe = Tribe(random.Random(seed))
        trees = [tribe.grow(3) for _ in range(6)]

        async with asyncio.timeout(20):
            results = await asyncio.gather(*(tribe.run(tree) for tree in trees), return_exceptions=True)

        assert failures(results) == [], seed
        assert tribe.gates._gates == {}, seed
