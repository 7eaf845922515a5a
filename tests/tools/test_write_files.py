import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, InvalidArgs
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Audience, Context
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.files.write_files import tool

MARK = b"\xef\xbb\xbf"


def parsed(**files: str) -> Any:
    listed = [{"path": path.replace("__", "/"), "content": content} for path, content in files.items()]
    return tool.parse({"explanation": "because", "files": listed})


async def write(ctx: Context, **files: str) -> Result:
    async with asyncio.timeout(20):
        return await tool.run(parsed(**files), ctx)


async def failure(ctx: Context, **files: str) -> CallError:
    with pytest.raises(CallError) as caught:
        await write(ctx, **files)
    return caught.value


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


async def test_each_file_is_made_or_replaced_and_told(ctx: Context, workspace: Path) -> None:
    (workspace / "old").write_text("1\n2\n")
    (workspace / "same").write_text("x\n")

    result = await write(ctx, new__deep__a="one\ntwo\n", old="1\n3\n4\n", same="x\n", empty="")

    assert result == Result(
        output=(
            "Created new/deep/a (2 lines).\n"
            "Updated old (+2 -1).\n"
            "Unchanged: same has this text already.\n"
            "Created empty (0 lines)."
        ),
        title="4 files",
        metadata={
            "diff": (
                "diff --git a/new/deep/a b/new/deep/a\nnew file mode 100644\n"
                "--- /dev/null\n+++ b/new/deep/a\n@@ -0,0 +1,2 @@\n+one\n+two\n"
                "diff --git a/old b/old\n--- a/old\n+++ b/old\n@@ -1,2 +1,3 @@\n 1\n-2\n+3\n+4\n"
                "diff --git a/empty b/empty\nnew file mode 100644\n"
            ),
            "additions": 4,
            "deletions": 1,
            "files": [
                {"path": "new/deep/a", "kind": "added", "additions": 2, "deletions": 0},
                {"path": "old", "kind": "modified", "additions": 2, "deletions": 1},
                {"path": "empty", "kind": "added", "additions": 0, "deletions": 0},
            ],
        },
    )
    assert tree(workspace) == {"new/deep/a": "one\ntwo\n", "old": "1\n3\n4\n", "same": "x\n", "empty": ""}


@pytest.mark.parametrize(
    ("before", "given", "after", "kept"),
    [
        pytest.param(b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n", ["crlf"], id="line ends"),
        pytest.param(MARK + b"a\n", "x\n", MARK + b"x\n", ["bom"], id="mark"),
        pytest.param(MARK + b"a\r\n", "x\n", MARK + b"x\r\n", ["crlf", "bom"], id="both"),
        pytest.param(b"a\r\nb\r\n", "x\r\ny\r\n", b"x\r\ny\r\n", None, id="given with its ends"),
        pytest.param(b"a\r\nb\n", "x\ny\n", b"x\ny\n", None, id="mixed before"),
        pytest.param(b"a\nb\n", "x\r\ny\r\n", b"x\r\ny\r\n", None, id="others on purpose"),
        pytest.param(MARK + b"a\n", "\ufeffx\n", MARK + b"x\n", None, id="given with its mark"),
        pytest.param(b"a\n", "\ufeffx\n", MARK + b"x\n", None, id="a mark on purpose"),
        pytest.param(b"a\r\nb", "x", b"x", None, id="no ends to keep"),
        pytest.param(b"", "x\n", b"x\n", None, id="empty before"),
    ],
)
async def test_line_ends_and_mark_of_a_file_are_kept(
    ctx: Context, workspace: Path, before: bytes, given: str, after: bytes, kept: list[str] | None
) -> None:
    (workspace / "a").write_bytes(before)

    result = await write(ctx, a=given)

    assert (workspace / "a").read_bytes() == after
    assert result.metadata.get("kept") == (None if kept is None else {"a": kept})
    assert ("kept" in result.output) is (kept is not None)


async def test_what_differs_only_in_what_is_kept_is_not_written(ctx: Context, workspace: Path) -> None:
    (workspace / "a").write_bytes(MARK + b"x\r\n")
    before = (workspace / "a").stat()

    result = await write(ctx, a="x\n")

    assert result.output == "Unchanged: a has this text already."
    assert (workspace / "a").stat() == before


@pytest.mark.parametrize(
    ("data", "code"), [(b"\x89PNG\0", "BinaryFile"), ("café".encode("latin-1"), "EILSEQ"), (b"\xff\xfea\0", "EILSEQ")]
)
async def test_what_is_no_text_is_not_written_over(ctx: Context, workspace: Path, data: bytes, code: str) -> None:
    (workspace / "a").write_bytes(data)

    error = await failure(ctx, b="first", a="text")

    assert (error.code, (workspace / "a").read_bytes(), (workspace / "b").exists()) == (code, data, False)
    assert error.message.endswith("To put a text in its place, delete it first.")


async def test_if_one_file_cannot_be_written_none_is(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them changes between the reading and the writing, and is the first to be found out."""
    (workspace / "a").write_text("1\n")
    commit = LocalWorkspace.commit

    def late(*args: Any, **more: Any) -> None:
        (workspace / "a").write_text("something else\n")
        commit(*args, **more)

    monkeypatch.setattr(LocalWorkspace, "commit", late)

    assert (await failure(ctx, a="2\n", b="new\n")).code == "ESTALE"
    assert tree(workspace) == {"a": "something else\n"}


async def test_a_folder_or_a_path_outside_refuses_all(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()

    assert (await failure(ctx, ok="x", d="y")).code == "EISDIR"
    assert (await failure(ctx, **{"ok": "x", "..__out": "y"})).code == "OutsideWorkspace"
    assert (await failure(ctx, ok__too__below="y", ok="x")).message == (
        "ok cannot be a file and the folder of ok/too/below at once."
    )
    assert tree(workspace) == {}


async def test_characters_that_cannot_be_written_are_refused(ctx: Context, workspace: Path) -> None:
    assert (await failure(ctx, ok="x", a="\ud800")).code == "InvalidArgs"
    assert tree(workspace) == {}


async def test_all_paths_are_needed_at_once_and_each_once(ctx: Context, workspace: Path) -> None:
    (workspace / "real").touch()
    (workspace / "link").symlink_to("real")

    assert tool.needs(parsed(link="x", new__b="y"), ctx.workspace) == [Need("edit", "real"), Need("edit", "new/b")]
    with pytest.raises(InvalidArgs, match="real and link, which are the same file, twice"):
        tool.needs(parsed(real="x", link="y"), ctx.workspace)
    assert (await failure(ctx, real="x", link="y")).code == "InvalidArgs"


async def test_the_files_that_were_approved_are_those_that_are_written(ctx: Context, workspace: Path) -> None:
    approved = replace(ctx, approved=frozenset({"a"}))

    assert (await write(approved, a="x")).output == "Created a (1 line)."
    assert (await failure(approved, a="y", b="x")).code == "ESTALE"
    assert (workspace / "a").read_text() == "x"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"explanation": "x"},
        {"files": [{"path": "a", "content": "b"}]},
        {"explanation": "x", "files": []},
        {"explanation": "x", "files": [{"path": "a"}]},
        {"explanation": "x", "files": [{"path": "a", "content": "b", "mode": 1}]},
        {"explanation": "x", "files": "a"},
        None,
    ],
)
def test_other_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgs):
        tool.parse(wrong)


@pytest.mark.parametrize(("model", "suits"), [(None, True), ("claude-x", True), ("gpt-4o", True), ("gpt-5", False)])
def test_it_is_for_models_that_do_not_edit_by_patches(model: str | None, suits: bool) -> None:
    assert tool.suits is not None
    assert tool.suits(Audience(model=model)) is suits
