"""`python -m bench.files`: the file tools beside the least that anybody could do, in turn, in one run.

No HTTP and no record: arguments, needs and the tool itself, on a real workspace with the default rules. The bare
way is the `rg` command, one pass over the file, or read + find + write with fsync and rename.
"""

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from app.sandbox import ripgrep
from app.server import tune_collector
from bench.machine import Machine
from bench.results_sections import RESULTS, loads, write
from bench.tool_bench import HEAD, TOOLS, Row, Workbench

SIZES = (25_000, 50_000, 100_000)
FOLDERS, FILES_EACH = 400, 50
LONG_FILE = 1_000_000
HUNKS = 100
NEEDLE_LINES = 50
CONTEXT = 3
GREP_GOAL = 1.3
WRITE_GOAL = 3.0
WORDS = ("alpha", "beta", "gamma", "delta", "import", "return", "class", "value", "total", "index")
FILE = "big.txt"

Block = tuple[list[str], list[str]]
"""Lines, and the lines that are to stand there instead."""


def search(bench: Workbench) -> Iterator[Row]:
    """One file in twenty matches; then every file does, and all have to be sorted."""
    count = plant(bench.root / "tree")
    for what, pattern in (("one in 20 matches", "needle"), ("all match", "alpha|value")):
        ours = partial(bench.call, "grep_files", {"pattern": pattern, "path": "tree"})
        bare = [
            partial(rg, bench.root / "tree", pattern),
            partial(rg, bench.root / "tree", pattern, "--sortr=modified"),
        ]
        rows = [
            Row(f"grep_files, {count:,} files, {what}", "`rg -l`", GREP_GOAL),
            Row("the same", "`rg -l --sortr=modified`"),
        ]
        bench.compare(rows, ours, bare)
        yield from rows


def plant(tree: Path) -> int:
    """A tree as projects have it: folders in folders, some kilobytes in each file."""
    chance = random.Random(1)
    for number in range(FOLDERS):
        folder = tree / f"package{number // 20:02}" / f"module{number % 20:02}"
        folder.mkdir(parents=True)
        for index in range(FILES_EACH):
            lines = [" ".join(chance.choices(WORDS, k=8)) for _ in range(40)]
            if chance.random() < 0.05:
                lines[20] = "here is the needle"
            (folder / f"file{index:02}.py").write_text("\n".join(lines))
    return FOLDERS * FILES_EACH


def rg(tree: Path, pattern: str, *arguments: str) -> None:
    command = [ripgrep.programs()[0], "--no-config", "-l", *arguments, pattern, "."]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE)


def read(bench: Workbench) -> Iterator[Row]:
    path = bench.root / "long.txt"
    path.write_text("\n".join(lines_of(LONG_FILE)) + "\n")
    asked = {"file_path": path.name, "offset": LONG_FILE - 9, "limit": 10}
    row = Row(f"read_file, the last 10 of {LONG_FILE:,} lines", "count its lines")
    bench.compare([row], partial(bench.call, "read_file", asked), [partial(count_lines, path)])
    yield row


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def patch(bench: Workbench) -> Iterator[Row]:
    for what, count in (("one hunk", 1), (f"{HUNKS} hunks", HUNKS)):
        for size in SIZES:
            blocks = blocks_of(lines_of(size), count)
            row = Row(f"apply_patch, {what} in {size:,} lines", "read, find, write", WRITE_GOAL)
            yield compare_writes(bench, row, partial(bench.call, "apply_patch", patch_of(blocks)), size, blocks)
    yield from compare_misses(bench, "apply_patch", patch_of([(absent(), ["new"])]))


def edit(bench: Workbench) -> Iterator[Row]:
    for size in SIZES:
        blocks = blocks_of(lines_of(size), 1)
        row = Row(f"edit_file in {size:,} lines", "read, find, write", WRITE_GOAL)
        yield compare_writes(bench, row, partial(bench.call, "edit_file", edit_of(*blocks[0])), size, blocks)
    yield from compare_misses(bench, "edit_file", edit_of(absent(), ["new"]))


def compare_writes(bench: Workbench, row: Row, ours: Callable[[], Any], size: int, blocks: list[Block]) -> Row:
    """Both change the same file, which is made anew each time, and both have to make the same of it."""
    path = bench.root / FILE
    prepare = partial(put_lines, path, size)
    prepare()
    rewrite(path, blocks)
    expected = path.read_bytes()
    prepare()
    ours()
    if path.read_bytes() != expected:
        raise RuntimeError(f"{row.what}: the file is not as it should be")
    bench.compare([row], ours, [partial(rewrite, path, blocks)], prepare)
    return row


def compare_misses(bench: Workbench, name: str, asked: Any) -> Iterator[Row]:
    """Fifty lines that are nowhere, which every way of matching has to find out."""
    path, needle = bench.root / FILE, "\n".join(absent()).encode()
    for size in SIZES:
        put_lines(path, size)
        row = Row(f"{name}, {NEEDLE_LINES} lines that are not in {size:,}", "read, find")
        bench.compare([row], partial(bench.failure, name, asked), [lambda: path.read_bytes().find(needle)])
        yield row


def rewrite(path: Path, blocks: list[Block]) -> None:
    """The least there is to do: read, find each block after the one before, write, sync and rename."""
    data, pieces, at = path.read_bytes(), list[bytes](), 0
    for old, new in blocks:
        wanted = "\n".join(old).encode()
        start = data.index(wanted, at)
        pieces += data[at:start], "\n".join(new).encode()
        at = start + len(wanted)
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(b"".join([*pieces, data[at:]]))
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)


def put_lines(path: Path, size: int) -> None:
    path.write_text("\n".join(lines_of(size)) + "\n")


def lines_of(size: int) -> list[str]:
    return [f"    {WORDS[number % 10]}_{number} = total[{number % 97}]" for number in range(size)]


def absent() -> list[str]:
    return [f"    {WORDS[number % 10]}_{number} = nothing[{number % 89}]" for number in range(NEEDLE_LINES)]


def blocks_of(lines: list[str], count: int) -> list[Block]:
    """One line to be changed at each of so many places, with the lines around it."""
    blocks = []
    for number in range(count):
        at = len(lines) * (2 * number + 1) // (2 * count)
        before, after = lines[at - CONTEXT : at], lines[at + 1 : at + 1 + CONTEXT]
        blocks.append(([*before, lines[at], *after], [*before, f"    changed = {at}", *after]))
    return blocks


def patch_of(blocks: list[Block]) -> str:
    return "\n".join(["*** Begin Patch", f"*** Update File: {FILE}", *chain(*map(hunk, blocks)), "*** End Patch"])


def hunk(block: Block) -> Iterator[str]:
    yield "@@"
    for old in block[0]:
        yield f" {old}" if old in block[1] else f"-{old}"
        if old not in block[1]:
            yield from (f"+{new}" for new in block[1] if new not in block[0])


def edit_of(old: list[str], new: list[str]) -> dict[str, str]:
    return {"file_path": FILE, "old_string": "\n".join(old), "new_string": "\n".join(new)}


SECTIONS = {"grep_files": search, "read_file": read, "apply_patch": patch, "edit_file": edit}


def render(rows: list[Row], rounds: int, machine: Machine) -> str:
    lines = [
        "## File tools",
        "",
        f"`python -m bench.files`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: each tool (arguments, needs",
        "and the tool itself, without HTTP and without a record) and the bare operation, alternating;",
        f"{rounds} rounds, times in milliseconds. The ratio of CPU is less noisy than the ratio of time.",
        f"Load average before {loads(machine.load_before)}, after {loads(os.getloadavg())};",
        f"disk {machine.disk}, fdatasync {machine.fsync_ms:.2f} ms.",
        "",
        *HEAD,
        *(row.line() for row in rows),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=[*SECTIONS], help="the tools to measure")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="where the workspace is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = list[Row]()
    tune_collector()  # as it is in the service
    with tempfile.TemporaryDirectory(prefix="toolcrib-bench-", dir=given.disk) as made:
        machine = Machine.look(Path(made))
        bench = Workbench(Path(made) / "workspace", given.rounds)
        for name in given.only:
            if name in TOOLS:
                rows += SECTIONS[name](bench)
            else:
                print(f"{name} is not there and not measured")
        bench.close()
    text = render(rows, given.rounds, machine)
    write(given.results, "files", text)
    print(text)


if __name__ == "__main__":
    main()
