"""A program that commits and is killed in the middle, again and again; it tells what was left each time.

python -m tests.sandbox.killed_commits ROOT exchange|link|copy          before each call of the system in turn
python -m tests.sandbox.killed_commits ROOT at-random TIMES             at any moment of many commits in a row
"""

import errno
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from app.core.ports import Change
from app.sandbox.files import renameat2
from app.sandbox.files.workspace import LocalWorkspace
from tests.sandbox.commit_interception import CALLS, LATE_CALLS, four_changes, intercept

SIZE = 20_000
OLD = {"a": "alpha", "b": "beta", "d/c": "gamma"}


def main() -> None:
    root, how = Path(sys.argv[1]), sys.argv[2]
    if how == "at-random":
        kill_at_random(root, int(sys.argv[3]))
    else:
        kill_at_every_step(root, how)


def kill_at_every_step(root: Path, renamer: str) -> None:
    is_over, step = False, 0
    while not is_over:
        step += 1
        lay_out(root)
        status = in_child(partial(commit_up_to, root, renamer, step))
        is_over = status == 0
        tell(root, step, status)


def commit_up_to(root: Path, renamer: str, step: int) -> None:
    patch, count = pytest.MonkeyPatch(), 0

    def watch(by_answer: bool) -> int | None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    ws = LocalWorkspace(root)
    changes = four_changes(ws, SIZE)
    intercept(patch, watch, CALLS + LATE_CALLS)
    if renamer != "exchange":
        patch.setattr(renameat2, "_call", lambda *args: errno.EINVAL)
    if renamer == "copy":
        patch.setattr(renameat2, "link", lambda *args: False)
    ws.commit(changes)


def kill_at_random(root: Path, times: int) -> None:
    lay_out(root)
    for number in range(times):
        status = in_child(lambda: commit_for_ever(root), after=random.uniform(0.001, 0.04))
        tell(root, number, status)


def commit_for_ever(root: Path) -> None:
    ws, sign = LocalWorkspace(root), random.SystemRandom().randrange(10)
    while True:
        sign = (sign + 1) % 10
        ws.commit([rewriting(ws, path, str(sign)) for path in ("a", "d/c", "new/file")])


def rewriting(ws: LocalWorkspace, path: str, sign: str) -> Change:
    """Every other time one of them is taken away."""
    is_removed = path == "new/file" and int(sign) % 2 and ws.stamp(path)
    return Change(path=path, data=None if is_removed else (sign * SIZE).encode(), before=ws.stamp(path))


def lay_out(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name, text in OLD.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text * SIZE)


def in_child(work: Callable[[], None], after: float | None = None) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tell(root: Path, step: int, status: int) -> None:
    """Contents in short: what is repeated, and how often."""
    left = {str(path.relative_to(root)): shortened(path.read_text()) for path in root.rglob("*") if path.is_file()}
    print(json.dumps({"step": step, "status": status, "left": left}), flush=True)  # noqa: T201


def shortened(text: str) -> list[str | int]:
    for word in ("alpha", "beta", "gamma", "ALPHA", "new", "GAMMA", *"0123456789"):
        times = text.count(word)
        if times and word * times == text:
            return [word, times]
    return [text[:40], len(text)]


if __name__ == "__main__":
    main()
