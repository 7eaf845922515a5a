"""`python -m bench.profile`: where Toolcrib's time goes under load.

The CPU of each thread comes from the kernel. Inside the threads py-spy looks
from outside, at whoever holds the GIL: C code that lets go of it (SQLite, the
disk) is seen only in the threads' totals. Needs `pip install py-spy`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench.load import ROOT, run_wrk, serving, start_wrk

Stack = tuple[str, ...]
RATE = 400
THIN = 0.006


def sample(pid: int, seconds: float, into: Path) -> dict[Stack, int]:
    """The stacks of the thread with the GIL, each with how often it was seen; the first frame is the thread."""
    command = [find_spy(), "record", "--pid", str(pid), "--duration", str(round(seconds)), "--rate", str(RATE)]
    command += ["--threads", "--gil", "--format", "raw", "--output", str(into)]
    subprocess.run(command, check=True, capture_output=True)
    stacks: Counter[Stack] = Counter()
    for line in into.read_text().splitlines():
        frames, _, count = line.rpartition(" ")
        stacks[tuple(shorten(frame) for frame in frames.split(";"))] += int(count)
    return stacks


def find_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    return found


def shorten(frame: str) -> str:
    """`name (path:line)` with the path from the package on."""
    name, _, place = frame.partition(" (")
    place = place.rstrip(")").replace(f"{ROOT}/", "")
    return f"{name} ({place.rpartition('site-packages/')[2].rpartition('/lib/python3.11/')[2]})" if place else name


def function_of(frame: str) -> str:
    """The frame without its line, so that one function is one entry."""
    return frame.rpartition(":")[0] + ")" if ":" in frame else frame


def shares(stacks: dict[Stack, int]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """How often each function was on a stack, at its top, and each line at the top."""
    within: Counter[str] = Counter()
    itself: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for stack, count in stacks.items():
        for function in {function_of(frame) for frame in stack}:
            within[function] += count
        itself[function_of(stack[-1])] += count
        lines[stack[-1]] += count
    return within, itself, lines


def tree(stacks: dict[Stack, int], total: int, depth: int = 0) -> Iterable[str]:
    """The stacks merged from the bottom, without the branches that are too thin to matter."""
    branches: dict[str, dict[Stack, int]] = {}
    for stack, count in stacks.items():
        if len(stack) > depth:
            branches.setdefault(function_of(stack[depth]), {})[stack] = count
    for function, branch in sorted(branches.items(), key=lambda item: -sum(item[1].values())):
        within = sum(branch.values())
        if within / total < THIN:
            return
        itself = sum(count for stack, count in branch.items() if len(stack) == depth + 1)
        yield f"  {within / total:6.1%}  {itself / total:6.1%}  {' ' * depth}{function}"
        yield from tree(branch, total, depth + 1)


def report(stacks: dict[Stack, int], top: int) -> Iterable[str]:
    total = sum(stacks.values())
    within, itself, lines = shares(stacks)
    yield f"{total} samples\n\n  within  itself  tree"
    yield from tree(stacks, total)
    yield f"\nof app/ only, by time within, top {top}:\n  within  itself  function"
    ours = [(function, count) for function, count in within.most_common() if "(app/" in function]
    for function, count in ours[:top]:
        yield f"  {count / total:6.1%}  {itself[function] / total:6.1%}  {function}"
    yield f"\nby time in the function itself, top {top}:"
    for function, count in itself.most_common(top):
        yield f"  {count / total:6.1%}  {function}"
    yield f"\nby line, top {top}:"
    for line, count in lines.most_common(top):
        yield f"  {count / total:6.1%}  {line}"


def thread_times(before: dict[str, int], after: dict[str, int], requests: float) -> Iterable[str]:
    yield "CPU per request by thread:"
    for thread, used in after.items():
        spent = (used - before.get(thread, 0)) / requests / 1000
        if spent >= 1:
            yield f"  {spent:6.0f} us  {thread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the data directory is made")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made,
        serving("toolcrib", Path(made) / "data") as server,
    ):
        run_wrk(server.port, given.clients, 1)
        before = server.cpu_by_thread
        told = run_wrk(server.port, given.clients, given.seconds)
        print("\n".join(thread_times(before, server.cpu_by_thread, told["requests"])))
        with start_wrk(server.port, given.clients, given.seconds + 2) as wrk:
            stacks = sample(server.pid, given.seconds, Path(made) / "stacks")
            wrk.communicate()
    print("\n".join(report(stacks, given.top)))


if __name__ == "__main__":
    main()
