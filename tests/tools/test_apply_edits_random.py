"""apply_edits on what nobody thought of: what it makes can be undone, a dry run tells the truth, and that is all."""

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CallError, EditMismatch
from app.core.results import Result
from app.core.tools import Context
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.files.apply_edits import _apply, tool
from tests.tools.conftest import ToyContext

INDENTS = ("", "\t", "  ", "    ")
OUTSIDE = b"nobody may touch this\n"


@dataclass(frozen=True)
class Desk:
    """A workspace with files in it, and one beside it."""

    root: Path
    ctx: Context

    def edit(self, format: str, content: str, **more: Any) -> Result:
        args = tool.parse({"format": format, "content": content, **more})
        approved = frozenset(need.pattern for need in tool.needs(args, self.ctx.workspace))
        return _apply(args, replace(self.ctx, approved=approved), Event())

    def tree(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def outside(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.root.parent.iterdir() if path.is_file()}


@contextmanager
def desk(files: dict[str, bytes]) -> Iterator[Desk]:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "ws"
        root.mkdir()
        (Path(folder) / "outside.txt").write_bytes(OUTSIDE)
        os.symlink("../outside.txt", root / "leak.txt")
        for name, data in files.items():
            (root / name).write_bytes(data)
        workspace = LocalWorkspace(root)
        yield Desk(root, ToyContext(workspace=workspace))
        workspace.close()


@dataclass(frozen=True)
class Change:
    """Lines `start` to `stop` of a file become these."""

    start: int
    stop: int
    new: list[str]


@dataclass(frozen=True)
class Plan:
    """A file of lines that are all different, and changes of it that do not meet."""

    lines: list[str]
    changes: list[Change]
    end: str
    is_open: bool
    has_mark: bool

    @property
    def data(self) -> bytes:
        text = self.end.join(self.lines) + ("" if self.is_open else self.end)
        return (codecs.BOM_UTF8 if self.has_mark else b"") + text.encode()


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    indents = draw(st.lists(st.sampled_from(INDENTS), min_size=1, max_size=30))
    lines = [f"{indent}old {number} é" for number, indent in enumerate(indents)]
    cuts = sorted(draw(st.sets(st.integers(0, len(lines)), max_size=8)))
    changes = list[Change]()
    for number, (start, stop) in enumerate(zip(cuts[::2], cuts[1::2], strict=False)):
        added = draw(st.lists(st.sampled_from(INDENTS), min_size=1, max_size=4))
        changes.append(Change(start, stop, [f"{indent}new {number} {n}" for n, indent in enumerate(added)]))
    end, is_open, has_mark = draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans()), draw(st.booleans())
    changes = [Change(change.start + 1, change.stop + 1, change.new) for change in changes]
    # A first line stays, as without one nobody could tell how lines ended.
    return Plan(["first", *lines], draw(st.permutations(changes)), end, is_open, has_mark)


def outdented(*texts: list[str]) -> list[list[str]]:
    """Without the blanks that all lines have in common, as models like to send them."""
    lines = [line for text in texts for line in text]
    size = next(len(indent) for indent in reversed(INDENTS) if all(line.startswith(indent) for line in lines))
    return [[line[size:] for line in text] for text in texts]


def blocks_of(changes: list[tuple[list[str], list[str]]], is_outdented: bool) -> str:
    sides = (outdented(old, new) if is_outdented else [old, new] for old, new in changes)
    return "a.txt\n" + "\n".join(
        "\n".join(["<<<<<<< SEARCH", *old, "=======", *new, ">>>>>>> REPLACE"]) for old, new in sides
    )


def hunks_of(changes: list[tuple[list[str], list[str]]], is_outdented: bool) -> str:
    sides = (outdented(old, new) if is_outdented else [old, new] for old, new in changes)
    hunks = ["\n".join(["@@ @@", *(f"-{line}" for line in old), *(f"+{line}" for line in new)]) for old, new in sides]
    return "\n".join(["```diff", "--- a/a.txt", "+++ b/a.txt", *hunks, "```"])


def undo(plan: Plan, format: str, is_outdented: bool) -> None:
    """There and back again: the bytes are those of before."""
    write = blocks_of if format == "search_replace" else hunks_of
    there = [(plan.lines[change.start : change.stop], change.new) for change in plan.changes]
    back = [(new, old) for old, new in reversed(there)]
    with desk({"a.txt": plan.data}) as at:
        made = at.edit(format, write(there, is_outdented))
        between = at.tree()["a.txt"]
        at.edit(format, write(back, is_outdented))

        assert made.metadata["applied"] == len(plan.changes)
        assert all(line.encode() in between for change in plan.changes for line in change.new)
        assert between != plan.data
        assert at.tree() == {"a.txt": plan.data, "leak.txt": OUTSIDE}


PLANS = plans().filter(lambda plan: len(plan.changes) > 0)
FORMATS = st.sampled_from(["search_replace", "udiff"])


@pytest.mark.sampled
@given(PLANS, FORMATS, st.booleans())
def test_what_is_made_can_be_undone_to_the_byte(plan: Plan, format: str, is_outdented: bool) -> None:
    undo(plan, format, is_outdented)


@given(PLANS, st.lists(st.text(st.sampled_from("ab \té"), max_size=5), min_size=2, max_size=9))
def test_a_whole_file_can_be_written_there_and_back(plan: Plan, lines: list[str]) -> None:
    with desk({"a.txt": plan.data}) as at:
        at.edit("whole", "\n".join(["a.txt", "````", *lines, "````"]))
        at.edit("whole", "\n".join(["a.txt", "````", *plan.lines, "````"]))

        if lines[-1] or not plan.is_open:  # a last line that is open and empty cannot be told from none
            assert at.tree()["a.txt"] == plan.data


PATHS = [
    "a.txt",
    "./a.txt",
    "b.txt",
    "sub/n.txt",
    "leak.txt",
    "../x",
    "/etc/hosts",
    ".git/config",
    "sub",
    "a.txt/b",
    "e",
]
LINES = ["a", "  a", "    a", "b", "", "  ", "...", "c\r", "x = 1", "\tx"]
WORDS = [
    *("<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```diff", "```bash", "````", "<source>", "</source>"),
    *("@@ @@", "--- a/a.txt", "+++ b/a.txt", "--- /dev/null", "+++ /dev/null", "+++ b/n.txt", "-a", "+x", " a", "-  a"),
]
FILES = st.lists(st.sampled_from(LINES), max_size=8)
SIDES = st.lists(st.sampled_from(LINES), max_size=4)


@dataclass(frozen=True)
class Case:
    files: dict[str, bytes]
    format: str
    content: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Files, and a text that is much like one of the formats, or not at all."""
    files = {"a.txt": draw(FILES), "b.txt": draw(FILES), "e": []}
    data = {name: "\n".join(lines).encode() for name, lines in files.items()}
    kind = draw(st.sampled_from(["search_replace", "udiff", "whole", "any"]))
    if kind == "any":
        lines = draw(st.lists(st.sampled_from([*PATHS, *LINES, *WORDS]), min_size=1, max_size=20))
        return Case(data, draw(st.sampled_from(["search_replace", "udiff", "whole"])), "\n".join(lines))
    paths = st.sampled_from(PATHS) if draw(st.booleans()) else st.sampled_from(["a.txt", "b.txt"])
    parts = [draw(edits(kind, files, draw(paths))) for _ in range(draw(st.integers(1, 4)))]
    return Case(data, kind, "\n".join(parts))


@st.composite
def edits(draw: st.DrawFn, kind: str, files: dict[str, list[str]], path: str) -> str:
    """An edit whose old lines are some of the file, or anything."""
    there = files.get(path, [])
    start = draw(st.integers(0, len(there)))
    old = there[start : start + draw(st.integers(0, 4))] if draw(st.booleans()) else draw(SIDES)
    new = draw(SIDES)
    if kind == "search_replace":
        return "\n".join([path, "<<<<<<< SEARCH", *old, "=======", *new, ">>>>>>> REPLACE"])
    if kind == "whole":
        return "\n".join([path, "````", *new, "````"])
    marks = draw(st.lists(st.sampled_from(" -"), min_size=len(old), max_size=len(old)))
    lines = [mark + line for mark, line in zip(marks, old, strict=True)]
    at = draw(st.integers(0, len(lines)))
    hunk = [*lines[:at], *(f"+{line}" for line in new), *lines[at:]]
    after = draw(st.sampled_from([path, path, path, "/dev/null"]))
    return "\n".join(["```diff", f"--- {path}", f"+++ {after}", *hunk, "```"])


def outcome(at: Desk, format: str, content: str, **more: Any) -> tuple[str, Any]:
    """How it ends: by its code, and with what it tells frontends. Nothing but a typed error may come out."""
    try:
        return "completed", at.edit(format, content, **more).metadata
    except EditMismatch as error:
        return error.code, (error.details, error.result.metadata if error.result else None)
    except CallError as error:
        return error.code, error.message


def without_dry_run(told: Any) -> Any:
    match told:
        case dict():
            return {key: value for key, value in told.items() if key != "dry_run"}
        case tuple():
            return tuple(without_dry_run(part) for part in told)
    return told


def foretell(case: Case, **how: bool) -> None:
    """A dry run changes nothing and says what the real run does; what fails leaves all as it was, if that is wanted."""
    with desk(case.files) as at:
        before = at.tree()
        dry = outcome(at, case.format, case.content, dry_run=True, **how)
        between = at.tree()
        real = outcome(at, case.format, case.content, **how)
        after = at.tree()

        assert between == before
        assert (dry[0], without_dry_run(dry[1])) == (real[0], without_dry_run(real[1]))
        assert at.outside() == {"outside.txt": OUTSIDE}
        if real[0] not in ("completed", "EditMismatch") or (how["atomic"] and real[0] != "completed"):
            assert after == before
        else:
            told = real[1] if real[0] == "completed" else real[1][1]
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            assert {file["path"] for file in told["files"]} == changed


@pytest.mark.sampled
@given(cases(), st.booleans())
def test_a_dry_run_foretells_the_real_one(case: Case, is_atomic: bool) -> None:
    foretell(case, atomic=is_atomic)
