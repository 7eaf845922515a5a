"""A call that writes files and is canceled: it gives up in time, or it is too late and the call says what was done."""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from app.core.ports import Change
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.files import apply_patch, write_file
from tests.support.services import HANG, Crib

PATCH = "*** Begin Patch\n*** Add File: made.txt\n+made\n*** End Patch\n"


class Held:
    """Keeps commits waiting: before they begin to write, or when they have written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._patch = monkeypatch

    def after(self, commit: Callable[..., None]) -> None:
        def held(ws: LocalWorkspace, changes: Sequence[Change], *, approved: Collection[str] | None = None) -> None:
            commit(ws, changes, approved=approved)
            self.reached.set()
            assert self.go.wait(HANG)

        self._patch.setattr(LocalWorkspace, "commit", held)

    def before(self, load: Callable[..., object]) -> None:
        def held(ws: LocalWorkspace, path: str, *, approved: Collection[str] | None = None) -> object:
            self.reached.set()
            assert self.go.wait(HANG)
            return load(ws, path, approved=approved)

        self._patch.setattr(LocalWorkspace, "load", held)


def made(crib: Crib) -> Path:
    return crib.data_dir / "workspace/made.txt"


async def heard() -> None:
    """A few turns of the loop: the wish is noted, the task is told, the thread's event is set."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def crib(crib: Crib) -> Crib:
    await crib.open()
    for tool in (apply_patch.tool, write_file.tool):
        crib.services.dispatcher.registry.add(tool)
    return crib


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


async def test_a_cancel_that_comes_too_late_lets_the_write_be_the_calls_end(crib: Crib, held: Held) -> None:
    held.after(LocalWorkspace.commit)
    live = crib.submit("apply_patch", input=PATCH)
    await asyncio.to_thread(held.reached.wait, HANG)

    canceling = asyncio.create_task(crib.services.dispatcher.cancel(live))
    await heard()
    assert not live.is_done, "what writes is waited for"
    held.go.set()
    await canceling

    assert (live.call.status, live.call.error) == ("completed", None)
    assert made(crib).read_text() == "made\n"


async def test_a_cancel_that_comes_in_time_leaves_nothing_written(crib: Crib, held: Held) -> None:
    held.before(LocalWorkspace.load)
    live = crib.submit("apply_patch", input=PATCH)
    await asyncio.to_thread(held.reached.wait, HANG)

    canceling = asyncio.create_task(crib.services.dispatcher.cancel(live))
    await heard()
    held.go.set()
    await canceling

    assert live.call.status == "error"
    assert '"Canceled"' in (live.call.error or "")
    assert not made(crib).exists()


async def test_the_next_writer_waits_until_a_canceled_one_is_really_over(crib: Crib, held: Held) -> None:
    held.before(LocalWorkspace.load)
    first = crib.submit("apply_patch", input=PATCH)
    await asyncio.to_thread(held.reached.wait, HANG)
    second = crib.submit("write_file", {"file_path": "second.txt", "content": "2"})
    await crib.at_the_gate(second)

    canceling = asyncio.create_task(crib.services.dispatcher.cancel(first))
    await heard()
    assert second.call.waiting == "gate"
    held.go.set()
    await canceling
    await second.wait(HANG)

    assert second.call.status == "completed"
