"""apply_patch through its tool: answers as recorded, all or nothing, and back again."""

import asyncio
import codecs
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.core.errors import CallError, InvalidArgs, OutsideWorkspace, PatchMismatch, PermissionDenied
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Audience, Context
from app.dispatch.tools.registry import Registry
from app.sandbox.files.workspace import LocalWorkspace
from app.text.patch.parse import GRAMMAR
from app.tools.files.apply_patch import tool

SCENARIOS = Path(__file__).parent.parent / "scenarios"
RECORDED = {case["name"]: case for case in json.loads((SCENARIOS / "apply_patch.json").read_text())}


@dataclass(frozen=True)
class Deviation:
    """What we do instead of what was recorded, and why."""

    is_done: bool
    expected: dict[str, str]
    reason: str


DEVIATIONS = {
    "move_to_self": Deviation(True, {"f": "A\nb\nc\nd\ne\n"}, "a file that moves to its own place is not lost"),
    "partial_then_fail_keeps_first": Deviation(
        False, {"f": "a\nb\nc\nd\ne\n", "g": "1\n"}, "a patch is applied whole or not at all"
    ),
    "begin_marker_with_stars_suffix": Deviation(True, {"h.txt": "1\n"}, "models write `*** Begin Patch ***`"),
}


def patch_of(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


async def apply(ctx: Context, *lines: str) -> Result:
    return await tool.run(tool.parse(patch_of(*lines)), ctx)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())


@pytest.mark.parametrize("name", RECORDED)
async def test_it_does_what_the_peer_was_recorded_to_do(name: str, ctx: Context, workspace: Path) -> None:
    recorded, deviation = RECORDED[name], DEVIATIONS.get(name)
    lay_out(workspace, recorded["input"])
    is_done, output = True, ""

    try:
        result = await tool.run(tool.parse(recorded["patch"].replace("{cwd}", str(workspace))), ctx)
        output = result.output.replace(str(workspace), "{cwd}")
    except CallError:
        is_done = False

    found = (is_done, {name: data.decode() for name, data in tree(workspace).items()})
    as_recorded = (recorded["rc"] == 0, recorded["expected"])
    assert found == ((deviation.is_done, deviation.expected) if deviation else as_recorded)
    assert (found == as_recorded) == (deviation is None), "a deviation that is none any more has to go"
    if is_done and recorded["rc"] == 0:
        assert output == recorded["stdout"]


def test_every_deviation_is_of_a_recorded_case_and_says_why() -> None:
    assert DEVIATIONS.keys() <= RECORDED.keys()
    assert all(deviation.reason for deviation in DEVIATIONS.values())


def test_it_is_told_to_models_as_the_peer_tells_it() -> None:
    assert (tool.takes, tool.grammar, tool.permission) == ("input", GRAMMAR, "edit")
    assert tool.schema["properties"].keys() == {"input"}
    assert tool.schema["properties"]["input"]["type"] == "string"
    assert (tool.schema["required"], tool.schema["additionalProperties"]) == (["input"], False)


def test_it_is_found_by_its_other_name() -> None:
    assert Registry([tool]).find("patch", "ann") is tool


@pytest.mark.parametrize(
    ("model", "is_for_it"), [(None, True), ("gpt-5.1-codex", True), ("gpt-4.1", False), ("claude-opus-4", False)]
)
def test_it_is_for_models_that_know_patches(model: str | None, is_for_it: bool) -> None:
    assert tool.suits is not None
    assert tool.suits(Audience(model=model)) is is_for_it


@pytest.mark.parametrize("raw", ["hello", {"input": "hello"}, {"input": 1}, {"patch": "x"}, None, 7])
def test_what_is_no_patch_is_refused_before_anything_is_asked(raw: Any) -> None:
    with pytest.raises(InvalidArgs):
        tool.parse(raw)


def test_it_needs_every_path_it_touches_once(ctx: Context, workspace: Path) -> None:
    (workspace / "link").symlink_to("real")
    (workspace / "real").write_text("a\n")
    lines = ["*** Update File: link", "*** Move to: x/y", "-a", "*** Delete File: real", "*** Add File: ./z", "+1"]

    needs = tool.needs(tool.parse(patch_of(*lines)), ctx.workspace)

    assert needs == [Need("edit", "real"), Need("edit", "x/y"), Need("edit", "z")]


@pytest.mark.parametrize(
    ("path", "error"), [("../x", OutsideWorkspace), ("/etc/passwd", OutsideWorkspace), ("a/.git/x", PermissionDenied)]
)
def test_it_asks_for_nothing_that_is_not_its_own(ctx: Context, path: str, error: type[CallError]) -> None:
    with pytest.raises(error):
        tool.needs(tool.parse(patch_of(f"*** Add File: {path}", "+1")), ctx.workspace)


async def test_only_what_was_approved_is_touched(ctx: Context, workspace: Path) -> None:
    lay_out(workspace, {"f": "a\n", "g": "b\n"})
    only_one = replace(ctx, approved=frozenset({"f"}))

    with pytest.raises(CallError) as caught:
        await apply(only_one, "*** Update File: f", "-a", "+A", "*** Update File: g", "-b", "+B")

    assert caught.value.code == "ESTALE"
    assert tree(workspace) == {"f": b"a\n", "g": b"b\n"}


async def test_a_patch_adds_changes_moves_and_deletes(ctx: Context, workspace: Path) -> None:
    lay_out(workspace, {"a": "1\n2\n3\n", "b": "x\n", "c": "gone\n"})

    result = await apply(
        ctx,
        *("*** Delete File: c", "*** Update File: a", " 1", "-2", "+two"),
        *("*** Add File: new/d", "+d", "*** Update File: b", "*** Move to: e", "-x", "+y"),
    )

    assert tree(workspace) == {"a": b"1\ntwo\n3\n", "new/d": b"d\n", "e": b"y\n"}
    assert result.title == "4 files"
    assert result.output == "Success. Updated the following files:\nA new/d\nM a\nM e\nD c\n"
    assert result.metadata == {
        "diff": (
            "diff --git a/c b/c\ndeleted file mode 100644\n--- a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
            "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
            "diff --git a/new/d b/new/d\nnew file mode 100644\n--- /dev/null\n+++ b/new/d\n@@ -0,0 +1 @@\n+d\n"
            "diff --git a/b b/e\nrename from b\nrename to e\n--- a/b\n+++ b/e\n@@ -1 +1 @@\n-x\n+y\n"
        ),
        "additions": 3,
        "deletions": 3,
        "files": [
            {"path": "c", "kind": "deleted", "additions": 0, "deletions": 1},
            {"path": "a", "kind": "modified", "additions": 1, "deletions": 1},
            {"path": "new/d", "kind": "added", "additions": 1, "deletions": 0},
            {"path": "e", "kind": "moved", "additions": 1, "deletions": 1, "moved_from": "b"},
        ],
    }


async def test_if_one_part_does_not_fit_nothing_is_done(ctx: Context, workspace: Path) -> None:
    lay_out(workspace, {"f": "a\n", "g": "b\n"})

    with pytest.raises(PatchMismatch):
        await apply(ctx, *("*** Add File: x/n", "+1", "*** Delete File: f", "*** Update File: g", "-zz", "+y"))

    assert tree(workspace) == {"f": b"a\n", "g": b"b\n"}
    assert not (workspace / "x").exists()


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (["*** Add File: n", "+a", "*** Update File: n", "-a", "+b"], {"f": "1\n", "g": "2\n", "n": "b\n"}),
        (["*** Delete File: f", "*** Add File: f", "+b"], {"f": "b\n", "g": "2\n"}),
        (["*** Add File: n", "+a", "*** Delete File: n"], {"f": "1\n", "g": "2\n"}),
        (["*** Add File: f", "+b", "*** Add File: ./f", "+c"], {"f": "c\n", "g": "2\n"}),
        (["*** Update File: f", "-1", "+x", "*** Delete File: f"], {"g": "2\n"}),
        (["*** Update File: f", "*** Move to: n", " 1", "*** Update File: n", "-1", "+x"], {"n": "x\n", "g": "2\n"}),
        (
            ["*** Update File: f", "*** Move to: n", " 1", "*** Update File: n", "*** Move to: m", " 1"],
            {"m": "1\n", "g": "2\n"},
        ),
        (["*** Update File: f", "*** Move to: n", " 1", "*** Add File: f", "+y"], {"f": "y\n", "n": "1\n", "g": "2\n"}),
        (["*** Update File: f", "*** Move to: g", "-1", "+x"], {"g": "x\n"}),
        (["*** Delete File: g", "*** Update File: f", "*** Move to: g", "-1", "+x"], {"g": "x\n"}),
        (
            [
                *("*** Update File: f", "*** Move to: t", " 1", "*** Update File: g", "*** Move to: f", " 2"),
                *("*** Update File: t", "*** Move to: g", " 1"),
            ],
            {"f": "2\n", "g": "1\n"},
        ),
        (
            ["*** Update File: f", "*** Move to: n", " 1", "*** Update File: n", "*** Move to: f", "-1", "+x"],
            {"f": "x\n", "g": "2\n"},
        ),
        (["*** Add File: n", "+1", "*** Update File: n", "*** Move to: m", " 1"], {"f": "1\n", "g": "2\n", "m": "1\n"}),
        (["*** Update File: f", "*** Move to: ./f", "-1", "+x"], {"f": "x\n", "g": "2\n"}),
    ],
)
async def test_a_later_operation_sees_what_an_earlier_one_did(
    ctx: Context, workspace: Path, lines: list[str], after: dict[str, str]
) -> None:
    lay_out(workspace, {"f": "1\n", "g": "2\n"})

    await apply(ctx, *lines)

    assert tree(workspace) == {name: text.encode() for name, text in after.items()}


@pytest.mark.parametrize(
    ("lines", "code", "what"),
    [
        (["*** Delete File: nothing"], "ENOENT", "nothing does not exist"),
        (["*** Update File: nothing", "-a"], "ENOENT", "nothing does not exist"),
        (["*** Delete File: f", "*** Update File: f", "-a"], "ENOENT", "f was deleted or moved away earlier"),
        (["*** Delete File: folder"], "EISDIR", "is a directory"),
        (["*** Update File: folder", "-a"], "EISDIR", "is a directory"),
        (["*** Add File: folder", "+a"], "EISDIR", "is a directory"),
        (["*** Add File: f/x", "+a"], "ENOTDIR", "f/x"),
        (["*** Update File: f", "*** Move to: folder", " a"], "EISDIR", "is a directory"),
        (["*** Update File: latin", "-a"], "EILSEQ", "latin is not UTF-8"),
        (["*** Update File: binary", "-a"], "BinaryFile", "binary is a binary file"),
        (["*** Update File: pipe", "-a"], "EINVAL", "pipe"),
        (["*** Add File: ../x", "+a"], "OutsideWorkspace", "../x"),
        (["*** Add File: n", "+\ud800"], "InvalidArgs", "lone surrogates"),
    ],
)
async def test_what_cannot_be_done_is_said(
    ctx: Context, workspace: Path, lines: list[str], code: str, what: str
) -> None:
    lay_out(workspace, {"f": "a\n", "folder/x": "a\n"})
    (workspace / "latin").write_bytes(b"\xe9\n")
    (workspace / "binary").write_bytes(b"\x7fELF\0\0\1")
    os.mkfifo(workspace / "pipe")
    before = tree(workspace)

    async with asyncio.timeout(20):
        with pytest.raises(CallError) as caught:
            await apply(ctx, *lines)

    assert (caught.value.code, what in caught.value.message) == (code, True)
    assert tree(workspace) == before


async def test_what_is_no_text_can_still_be_deleted_and_replaced(ctx: Context, workspace: Path) -> None:
    for name in ("a", "b"):
        (workspace / name).write_bytes(b"\xff\0")

    result = await apply(ctx, "*** Delete File: a", "*** Add File: b", "+text")

    assert tree(workspace) == {"b": b"text\n"}
    assert (result.metadata["diff"], result.metadata["files"][0]["kind"]) == ("", "deleted")


async def test_a_file_that_moves_keeps_its_mode(ctx: Context, workspace: Path) -> None:
    lay_out(workspace, {"run.sh": "echo\n"})
    (workspace / "run.sh").chmod(0o755)

    await apply(ctx, "*** Update File: run.sh", "*** Move to: bin/run", "-echo", "+exit")

    assert (workspace / "bin/run").stat().st_mode & 0o777 == 0o755


async def test_a_patch_that_keeps_every_line_touches_nothing(ctx: Context, workspace: Path) -> None:
    lay_out(workspace, {"f": "a\n"})
    before = (workspace / "f").stat()

    result = await apply(ctx, "*** Update File: f", " a")

    assert result.output == "Success. Updated the following files:\nM f\n"
    assert (workspace / "f").stat() == before
    assert result.metadata["diff"] == ""


TEXT = st.text(
    st.sampled_from("ab *+-@ \t\u00e9\u2013\u201c\u4e2d\U0001f600\x0b\x0c\x1c\x85\u2028\u00a0"), max_size=6
) | st.sampled_from(["*** End Patch", "*** Begin Patch", "@@", "*** End of File", ""])
Marked = list[tuple[str, str]]


@dataclass(frozen=True)
class Edit:
    """A file, a patch for it, and the patch that undoes it."""

    before: bytes
    after: bytes
    restored: bytes
    patch: str
    undo: str
    is_told_by_lines: bool


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """Lines that stay, go and come, as a patch of hunks with some context, and what comes of it by the plain rule."""
    is_whole, end, has_bom = draw(st.booleans()), draw(st.sampled_from(["\n", "\r\n"])), draw(st.booleans())
    marks = draw(st.lists(st.sampled_from(" -+"), min_size=1, max_size=14).filter(lambda marks: set(marks) != {" "}))
    # Lines are told apart by their numbers, unless the hunk shows the whole file.
    marked = [(mark, draw(TEXT) + ("" if is_whole else f" {number}")) for number, mark in enumerate(marks)]
    if end == "\r\n":  # a file without line ends does not tell how they would be
        marked[:0] = [(" ", "head"), (" ", "neck")]
    lines = [text for mark, text in marked if mark != "+"]
    has_end = draw(st.booleans()) or not lines or not lines[-1]
    last_touched = marked[-1][0] != " "
    bom = codecs.BOM_UTF8 if has_bom else b""
    ended, changed = end.join([*lines, ""]), end.join([*(text for mark, text in marked if mark != "-"), ""])
    cut = 0 if has_end else len(end)
    context = len(marked) if is_whole else draw(st.integers(1, 3))
    return Edit(
        bom + ended[: len(ended) - cut].encode(),
        bom + changed[: len(changed) - (0 if last_touched else cut)].encode(),
        bom + ended[: len(ended) - (0 if last_touched else cut)].encode(),
        hunks_of(marked, context),
        hunks_of([({"-": "+", "+": "-"}.get(mark, mark), text) for mark, text in marked], context),
        is_told_by_lines=not is_whole and not has_bom and (has_end or not last_touched),
    )


def hunks_of(marked: Marked, context: int) -> str:
    shown = {
        near for at, (mark, _) in enumerate(marked) if mark != " " for near in range(at - context, at + context + 1)
    }
    lines = list[str]()
    for at, (mark, text) in enumerate(marked):
        if at in shown and at - 1 not in shown:
            lines.append("@@")
        if at in shown:
            lines.append(mark + text)
    return patch_of("*** Update File: f", *lines)


@contextmanager
def room(ctx: Context, files: dict[str, bytes]) -> Iterator[tuple[Context, Path]]:
    """A workspace in a folder where nothing else may change."""
    with tempfile.TemporaryDirectory() as outside:
        root = Path(outside) / "ws"
        root.mkdir()
        (Path(outside) / "secret").write_bytes(b"kept\n")
        for name, data in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)
        workspace = LocalWorkspace(root)
        try:
            yield replace(ctx, workspace=workspace), Path(outside)
        finally:
            workspace.close()


def run(ctx: Context, patch: str) -> Result:
    return asyncio.run(_run(ctx, patch))


async def _run(ctx: Context, patch: str) -> Result:
    args = tool.parse(patch)
    tool.needs(args, ctx.workspace)
    return await tool.run(args, ctx)


def there_and_back(ctx: Context, edit: Edit) -> None:
    with room(ctx, {"f": edit.before}) as (here, outside):
        result = run(here, edit.patch)
        assert tree(outside) == {"secret": b"kept\n", "ws/f": edit.after}
        if edit.is_told_by_lines:
            counts = (edit.patch.count("\n+"), edit.patch.count("\n-"))
            assert (result.metadata["additions"], result.metadata["deletions"]) == counts
        run(here, edit.undo)
        assert tree(outside) == {"secret": b"kept\n", "ws/f": edit.restored}


@pytest.mark.sampled
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits())
def test_a_patch_and_its_reverse_give_the_original_bytes(ctx: Context, edit: Edit) -> None:
    """But for the end of a last line without one: a line that a patch touches has its end afterwards."""
    there_and_back(ctx, edit)


GOOD_PATHS = ["f", "g", "./f", "new", "d/new", "d/../f"]
BAD_PATHS = ["d", "d/h", "../secret", "../ws/f", "d/../../secret", ".git/x", "/", "f/x", "nothing", " f "]
PATHS = st.sampled_from(GOOD_PATHS * 5 + BAD_PATHS)
CHANGE = st.one_of(
    st.sampled_from(
        [
            *(
                ["-a", "+x"],
                [" a", "-b", "+x"],
                ["@@ b", "-a"],
                ["@@ b", "+x"],
                ["+x"],
                ["-c", "+x", "*** End of File"],
            ),
            *([" a", "", "+x"], ["- a", "+x"], ["-b", "+y", "@@", " c", "+z"], [" a"], ["-zz"], ["@@ zz", "-a"]),
        ]
    ),
    st.lists(st.sampled_from(["@@", "@@ a", " a", "-b", "+x", "", " ", "*** End of File"]) | TEXT, max_size=5),
)
OPERATION = st.one_of(
    st.tuples(PATHS, CHANGE).map(lambda parts: [f"*** Update File: {parts[0]}", *parts[1]]),
    st.tuples(PATHS, PATHS, CHANGE).map(
        lambda parts: [f"*** Update File: {parts[0]}", f"*** Move to: {parts[1]}", *parts[2]]
    ),
    PATHS.map(lambda path: [f"*** Delete File: {path}"]),
    st.tuples(PATHS, st.lists(TEXT, max_size=3)).map(
        lambda parts: [f"*** Add File: {parts[0]}", *(f"+{line}" for line in parts[1])]
    ),
)
FILES = {"f": b"a\nb\na\nc\n", "g": b"\xef\xbb\xbf  a\r\nb", "d/h": b"\xff"}


def whole_or_nothing(ctx: Context, operations: list[list[str]]) -> None:
    lines = [line for operation in operations for line in operation]
    named = {line.partition(": ")[2].strip() for line in lines if line.startswith("*** ")}
    failure = None
    with room(ctx, FILES) as (here, outside):
        before = tree(outside)
        try:
            run(here, patch_of(*lines))
        except CallError as error:
            failure = error
        after = tree(outside)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed <= {os.path.normpath(f"ws/{name}") for name in named} - {"secret"}
    if failure is not None:
        assert changed == set()
        assert str(outside) not in failure.message.replace(str(outside / "ws"), "")


@pytest.mark.sampled
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATION, min_size=1, max_size=4))
@example([["*** Update File: f", "-b", "+x"], ["*** Delete File: ../secret"]])
@example([["*** Update File: f", "*** Move to: d/h", "-b", "+x"]])
def test_a_patch_of_any_kind_is_applied_whole_or_not_at_all(ctx: Context, operations: list[list[str]]) -> None:
    whole_or_nothing(ctx, operations)
