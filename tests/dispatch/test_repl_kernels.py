"""The kernels of sessions: who has one, how long it lives, and when it is replaced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.errors import InvalidArgs, ToolUnavailable
from app.core.network_policy import NetworkPolicy
from app.core.sandbox import Command
from app.core.sessions import Session
from app.core.terminals import Kernel
from app.dispatch.live_calls import LiveCall
from app.dispatch.session.repl_kernels import Kernels, Start
from app.sandbox.files.workspace import LocalWorkspace
from tests.support.repl_kernels import GIB, HANG, WALLED, ToyClock, call_of

BLUE, GREEN = Session("admin", "blue"), Session("admin", "green")


async def cat(memory: int | None) -> Command:
    """An interpreter that says what it hears."""
    return Command(argv=("sh", "-c", "cat <&3 >&4"), has_channel=True, memory=memory or GIB)


async def env(memory: int | None) -> Command:
    return Command(argv=("sh", "-c", "echo $A $B >&4; cat <&3"), has_channel=True, env={"A": "1", "B": "2"})


async def missing(memory: int | None) -> Command:
    raise ToolUnavailable("It is not installed.")


class Toys:
    """Kernels of a toy kind, on a clock that stands still."""

    def __init__(self, root: Path) -> None:
        self.clock = ToyClock()
        self.workspace = LocalWorkspace(root)
        self.env = {"B": "3"}
        self.kernels = Kernels(
            WALLED, {"cat": cat, "env": env, "missing": missing}, self.clock, memory=2 * GIB, idle=100
        )

    async def environment(self) -> dict[str, str]:
        return self.env

    @property
    def start(self) -> Start:
        return Start(self.workspace, self.environment, lambda decision: None)

    async def use(self, session: Session = BLUE, kind: str = "cat", memory: int | None = None) -> Kernel:
        """A kernel that was lent and given back."""
        async with asyncio.timeout(HANG), self.kernels.held(call_of(session), kind, memory, self.start) as kernel:
            return kernel


@pytest.fixture
async def toys(tmp_path: Path) -> AsyncIterator[Toys]:
    toys = Toys(tmp_path)
    yield toys
    await toys.kernels.close()
    toys.workspace.close()


async def heard(kernel: Kernel, text: bytes) -> bytes | None:
    async with asyncio.timeout(HANG):
        await kernel.process.send(text)
        return await kernel.process.receive()


async def test_a_session_has_one_kernel_of_a_kind_that_is_fresh_once(toys: Toys) -> None:
    first, again, other = await toys.use(), await toys.use(), await toys.use(GREEN)

    assert again.process is first.process
    assert other.process is not first.process
    assert [first.is_fresh, again.is_fresh, other.is_fresh] == [True, False, True]
    assert [first.lost, again.lost, other.lost] == [None, None, None]
    assert await heard(first, b"hello") == b"hello"


async def test_it_is_ended_when_nobody_used_it_for_too_long_and_the_next_call_is_told(toys: Toys) -> None:
    first, other = await toys.use(), await toys.use(GREEN)
    toys.clock.seconds += 60
    await toys.use(GREEN)
    toys.clock.seconds += 40

    await toys.kernels.sweep()
    next_one, still = await toys.use(), await toys.use(GREEN)

    assert first.process.ended is not None
    assert next_one.is_fresh
    assert next_one.lost == "The interpreter was ended after 100 s without use, so what was defined in it is gone."
    assert still.process is other.process
    assert (await toys.use()).lost is None


async def test_one_that_is_used_is_not_idle(toys: Toys) -> None:
    async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as kernel:
        toys.clock.seconds += 1000
        await toys.kernels.sweep()

        assert kernel.process.ended is None


async def test_one_that_ended_between_calls_is_replaced_and_the_next_call_is_told(toys: Toys) -> None:
    first = await toys.use()
    await first.process.end(0)

    second = await toys.use()

    assert second.is_fresh
    assert second.lost == "The interpreter had ended, so what was defined in it is gone."


async def test_one_that_ended_while_it_was_used_is_replaced_without_a_word(toys: Toys) -> None:
    async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as kernel:
        await kernel.process.end(0)

    second = await toys.use()

    assert (second.is_fresh, second.lost) == (True, None)


async def test_a_session_that_was_narrowed_gets_another_kernel(toys: Toys) -> None:
    first = await toys.use()

    second = await toys.use(replace(BLUE, network_policy=NetworkPolicy("disabled", ())))

    assert first.process.ended is not None
    assert second.lost == "The session was changed and the interpreter restarted, so what was defined in it is gone."


async def test_a_call_that_was_stopped_could_not_know_and_the_next_one_is_told(toys: Toys) -> None:
    begun = asyncio.Event()

    async def use() -> None:
        async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as kernel:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await kernel.process.end(0)

    using = asyncio.create_task(use())
    async with asyncio.timeout(HANG):
        await begun.wait()
    using.cancel()
    await asyncio.wait([using])

    lost = (await toys.use()).lost
    assert lost == "The call before was stopped and the interpreter with it, so what was defined in it is gone."


async def test_what_is_still_used_when_its_session_is_deleted_does_not_stay(toys: Toys) -> None:
    async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as kernel:
        await toys.kernels.end_session("admin", "blue")

        assert kernel.process.ended is not None
        async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as other:
            assert other.process is not kernel.process

    assert other.process.ended is None


async def test_another_workspace_is_another_kernel(toys: Toys, tmp_path: Path) -> None:
    first = await toys.use()
    (tmp_path / "other").mkdir()
    toys.workspace = LocalWorkspace(tmp_path / "other")

    assert (await toys.use()).process is not first.process


async def test_only_more_memory_than_it_has_starts_it_anew(toys: Toys) -> None:
    first = await toys.use()

    less, more = await toys.use(memory=GIB), await toys.use(memory=2 * GIB)

    assert less.process is first.process
    assert more.process is not first.process
    assert (await toys.use(memory=GIB)).process is more.process
    with pytest.raises(InvalidArgs, match="at most 2g of memory"):
        await toys.use(memory=2 * GIB + 1)


async def test_calls_use_it_one_after_the_other(toys: Toys) -> None:
    order, go = list[str](), asyncio.Event()

    async def use(name: str) -> None:
        async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start):
            order.append(f"{name} in")
            await go.wait()
            order.append(f"{name} out")

    async with asyncio.timeout(HANG), asyncio.TaskGroup() as group:
        group.create_task(use("a"))
        group.create_task(use("b"))
        while not order:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        go.set()

    assert order == ["a in", "a out", "b in", "b out"]


async def test_a_call_from_within_a_cell_cannot_use_the_kernel_of_that_cell(toys: Toys) -> None:
    outer = call_of(BLUE)
    async with toys.kernels.held(outer, "cat", None, toys.start):
        for inner in (call_of(BLUE, outer), call_of(BLUE, call_of(GREEN, outer))):
            with pytest.raises(ToolUnavailable, match="runs the cell that made this call"):
                await enter(toys, inner)

    assert not (await toys.use()).is_fresh


async def test_dropping_ends_it_also_while_it_is_used(toys: Toys) -> None:
    async with toys.kernels.held(call_of(BLUE), "cat", None, toys.start) as kernel:
        assert await toys.kernels.drop("admin", "blue", "cat")
        assert kernel.process.ended is not None
        assert not await toys.kernels.drop("admin", "blue", "cat")

    assert not await toys.kernels.drop("admin", "green", "cat")
    assert (await toys.use()).lost is None


async def test_deleting_a_session_ends_its_kernels_and_no_others(toys: Toys) -> None:
    first, other = await toys.use(), await toys.use(GREEN)

    await toys.kernels.end_session("admin", "blue")

    assert first.process.ended is not None
    assert other.process.ended is None
    assert (await toys.use()).lost is None


async def test_when_the_service_stops_none_is_left_and_none_is_started(toys: Toys) -> None:
    first, other = await toys.use(), await toys.use(GREEN)

    await toys.kernels.close()

    assert first.process.ended is not None
    assert other.process.ended is not None
    with pytest.raises(ToolUnavailable, match="stopping"):
        await toys.use()


async def test_what_cannot_be_started_is_said_and_can_be_tried_again(toys: Toys) -> None:
    for _ in range(2):
        with pytest.raises(ToolUnavailable, match="not installed"):
            await toys.use(kind="missing")
    with pytest.raises(ToolUnavailable, match="no interpreter of the kind lisp"):
        await toys.use(kind="lisp")


async def test_it_has_the_environment_of_its_session_on_top_of_its_own(toys: Toys) -> None:
    kernel = await toys.use(kind="env")

    assert await kernel.process.receive() == b"1 3"


async def enter(toys: Toys, live: LiveCall) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(toys.kernels.held(live, "cat", None, toys.start))
