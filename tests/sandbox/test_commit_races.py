"""Commits while others turn folders and files into links out, and while others commit too."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest

from app.core.errors import CallError
from app.core.ports import Change, Stamp
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.conftest import tree
from tests.sandbox.rename_race import exchanging, last, repeating
from tests.support.scale import FULL

SECONDS = 5 if FULL else 0.4
REFUSED = {"OutsideWorkspace", "ESTALE", "EEXIST", "ENOENT", "ENOTDIR", "ELOOP"}
SEEN = {"read", "written", "OutsideWorkspace"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("outside/f", "outside/deep/f", "root/a/f", "root/a/deep/f", "root/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("SECRET" if name.startswith("outside") else "inside")
    (tmp_path / "root/b").symlink_to("../outside")
    return tmp_path / "root"


class Worker:
    """Reads and writes, and counts how it was answered."""

    def __init__(self, ws: LocalWorkspace, path: str) -> None:
        self.ws = ws
        self.path = path
        self.answers = Counter[str]()
        self._numbers = count()

    def __call__(self) -> bool:
        try:
            read = self.ws.load(self.path, approved={self.path})
            assert read.data.startswith(b"inside")
            self.answers["read"] += 1
            change = Change(path=self.path, data=b"inside %d" % next(self._numbers), before=read.stamp)
            new = Change(path=f"{self.path}.new", data=b"inside", before=None)
            self.ws.commit([change, new], approved={self.path, new.path})
            self.answers["written"] += 1
            self.ws.commit([Change(path=new.path, data=None, before=self.ws.stamp(new.path))], approved={new.path})
        except CallError as error:
            self.answers[error.code] += 1
        return True


@pytest.mark.sampled
def test_no_commit_goes_through_a_folder_that_was_swapped_for_a_link(
    ws: LocalWorkspace, root: Path, opener: str
) -> None:
    outside = tree(root.parent / "outside")
    workers = [Worker(ws, "a/f"), Worker(ws, "a/deep/f")]
    with ExitStack() as stack:
        swaps = stack.enter_context(exchanging(root / "a", root / "b"))
        for worker in workers:
            stack.enter_context(repeating(worker))
        last(SECONDS, lambda: swaps[0] > 100 and all(sum_of(workers)[answer] for answer in SEEN))

    answers = sum_of(workers)
    assert tree(root.parent / "outside") == outside
    assert leftovers(root.parent) == []
    assert swaps[0] > 100
    assert SEEN <= set(answers) <= REFUSED | SEEN


def sum_of(workers: list[Worker]) -> Counter[str]:
    return sum((worker.answers.copy() for worker in workers), Counter[str]())


@pytest.mark.sampled
@pytest.mark.usefixtures("renamer")
def test_no_commit_goes_through_a_file_that_was_swapped_for_a_link(ws: LocalWorkspace, root: Path) -> None:
    outside = tree(root.parent / "outside")
    worker, swapper = Worker(ws, "file"), turning_into_a_link(root / "file")
    with repeating(worker), repeating(lambda: next(swapper)) as swaps:
        last(SECONDS, lambda: swaps[0] > 20 and worker.answers["read"] > 0)

    assert tree(root.parent / "outside") == outside
    assert leftovers(root.parent) == []
    assert swaps[0] > 20
    assert {"read"} <= set(worker.answers) <= REFUSED | SEEN


def turning_into_a_link(file: Path) -> Iterator[bool]:
    """A file and a link out take turns, each put over the other. Now and then there is time to do something."""
    link, real = file.with_name("link.tmp"), file.with_name("real.tmp")
    for turn in count():
        link.symlink_to("../outside/f")
        link.rename(file)
        yield True
        real.write_text("inside")
        real.rename(file)
        time.sleep(0.003 * (turn % 3))
        yield True


def leftovers(folder: Path) -> list[str]:
    return [name for name in tree(folder) if ".toolcrib-" in name]


@pytest.mark.sampled
@pytest.mark.usefixtures("renamer")
def test_of_commits_at_the_same_time_none_is_lost(ws: LocalWorkspace, root: Path) -> None:
    """Everybody counts on in the same file; whoever comes too late is told so."""
    (root / "file").write_text("0")
    refused = Counter[str]()

    def count_on() -> bool:
        read = ws.load("file")
        try:
            ws.commit([Change(path="file", data=b"%d" % (int(read.data) + 1), before=read.stamp)])
        except CallError as error:
            refused[error.code] += 1
            return False
        return True

    with ExitStack() as stack:
        times = [stack.enter_context(repeating(count_on)) for _ in range(4)]
        last(SECONDS, lambda: refused["ESTALE"] > 0 and sum(one[0] for one in times) > 10)

    assert int((root / "file").read_text()) == sum(one[0] for one in times) > 10
    assert set(refused) == {"ESTALE"}
    assert leftovers(root) == []


@pytest.mark.usefixtures("renamer")
@pytest.mark.parametrize("data", [b"mine", None], ids=["made", "taken away"])
def test_only_one_of_many_makes_a_file_or_takes_it_away(ws: LocalWorkspace, root: Path, data: bytes | None) -> None:
    answers = Counter[str]()

    def try_it(start: Barrier, before: Stamp | None) -> None:
        start.wait(10)
        try:
            ws.commit([Change(path="file", data=data, before=before)])
            answers["done"] += 1
        except CallError as error:
            answers[error.code] += 1

    for _ in range(20):
        (root / "file").unlink(missing_ok=True)
        if data is None:
            (root / "file").write_text("inside")
        start, before = Barrier(3), ws.stamp("file")
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(try_it, start, before) for _ in range(3)]:
                done.result()

    assert answers == {"done": 20, "EEXIST" if data else "ESTALE": 40}
    assert leftovers(root) == []
