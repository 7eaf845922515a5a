"""apply_edits: what models write as text, made in files."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from app.core.errors import (
    BinaryFile,
    CallError,
    Canceled,
    EditMismatch,
    FileFailed,
    InvalidArgs,
    OutsideWorkspace,
    PermissionDenied,
)
from app.core.ports import MAX_LOADED_BYTES, Snapshot
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Audience, Context, Effect
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.files.apply_edits import _apply, tool
from tests.support.services import Crib
from tests.support.toy_tools import Toys
from tests.tools.conftest import ToyContext


def block(path: str, search: str, replace: str) -> str:
    """A SEARCH/REPLACE block; the sides end with their lines."""
    return f"{path}\n```\n<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n```\n"


def diff(path: str, hunks: str) -> str:
    return f"```diff\n--- a/{path}\n+++ b/{path}\n{hunks}```\n"


async def edit(ctx: Context, content: str, format: str = "search_replace", **more: Any) -> Result:
    args = tool.parse({"format": format, "content": content, **more})
    approved = frozenset(need.pattern for need in tool.needs(args, ctx.workspace))
    async with asyncio.timeout(20):
        return await tool.run(args, replace(ctx, approved=approved or None))


async def failing(ctx: Context, content: str, format: str = "search_replace", **more: Any) -> EditMismatch:
    with pytest.raises(EditMismatch) as caught:
        await edit(ctx, content, format, **more)
    assert caught.value.result is not None
    return caught.value


def report(error: EditMismatch) -> str:
    assert error.result is not None
    return error.result.output


def tree(workspace: Path) -> dict[str, bytes]:
    return {str(path.relative_to(workspace)): path.read_bytes() for path in workspace.rglob("*") if path.is_file()}


async def test_blocks_are_made_and_told_with_their_diff(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("one\ntwo\nthree\n")
    content = block("a.py", "two\n", "TWO\n2\n") + block("src/new.py", "", "print()\n")

    result = await edit(ctx, f"I will:\n\n{content}\nDone.")

    assert tree(workspace) == {"a.py": b"one\nTWO\n2\nthree\n", "src/new.py": b"print()\n"}
    assert result == Result(
        output="2 SEARCH/REPLACE blocks applied.\nM a.py\nA src/new.py",
        title="2 SEARCH/REPLACE blocks",
        metadata={
            "format": "search_replace",
            "dry_run": False,
            "blocks": 2,
            "applied": 2,
            "failed": 0,
            "edits": [
                {"block": 1, "line": 5, "path": "a.py", "strategy": "exact", "places": 1},
                {"block": 2, "line": 14, "path": "src/new.py", "strategy": "new_file", "places": 1},
            ],
            "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,4 @@\n one\n-two\n+TWO\n+2\n three\n"
            "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1 @@\n+print()\n",
            "additions": 3,
            "deletions": 1,
            "files": [
                {"path": "a.py", "kind": "modified", "additions": 2, "deletions": 1},
                {"path": "src/new.py", "kind": "added", "additions": 1, "deletions": 0},
            ],
        },
    )


async def test_each_block_sees_what_those_before_it_made(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb\n")
    content = block("a.txt", "a\n", "x\ny\n") + block("./a.txt", "y\nb\n", "z\n") + block("a.txt", "", "end\n")
    made = block("n.txt", "", "1\n") + block("n.txt", "1\n", "2\n")

    result = await edit(ctx, content + made)

    assert tree(workspace) == {"a.txt": b"x\nz\nend\n", "n.txt": b"2\n"}
    assert [view["strategy"] for view in result.metadata["edits"]] == ["exact", "exact", "append", "new_file", "exact"]
    assert result.metadata["diff"].startswith("--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,3 @@\n-a\n-b\n+x\n+z\n+end\n")


async def test_several_places_are_told_and_the_first_is_taken(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\ny\nx\nx\n")

    result = await edit(ctx, block("a.txt", "x\n", "z\n"))

    assert tree(workspace) == {"a.txt": b"z\ny\nx\nx\n"}
    assert result.metadata["edits"][0]["places"] == 3
    assert result.output.endswith("Note: SEARCH/REPLACE block 1 matches 3 places in a.txt; the first of them was used.")


async def test_those_that_match_are_written_and_those_that_do_not_are_told(ctx: Context, workspace: Path) -> None:
    lines = [f"line {number}\n" for number in range(1, 41)]
    (workspace / "a.py").write_text("".join(lines))
    (workspace / "b.py").write_text("b\n")
    wrong = block("a.py", "line 20\nlime 21\nline 22\n", "line 20\nnew\nline 22\n")

    error = await failing(ctx, block("a.py", "line 3\n", "three\n") + wrong + block("b.py", "b\n", "B\n"))

    assert tree(workspace) == {"a.py": "".join(lines).replace("line 3\n", "three\n").encode(), "b.py": b"B\n"}
    assert error.message == (
        "1 of 3 SEARCH/REPLACE blocks failed to match: 2 (a.py). The other 2 SEARCH/REPLACE blocks were applied:"
        " don't re-send them, only send a corrected version of the SEARCH/REPLACE block that failed."
    )
    assert error.details == {
        "failed": [{"block": 2, "line": 11, "path": "a.py", "strategy": None, "reason": "no_match"}],
        "applied": [
            {"block": 1, "line": 3, "path": "a.py", "strategy": "exact", "places": 1},
            {"block": 3, "line": 23, "path": "b.py", "strategy": "exact", "places": 1},
        ],
    }
    told = report(error)
    assert told.startswith("# 1 of 3 SEARCH/REPLACE blocks failed to match\n\n## SEARCH/REPLACE block 2 (line 11 of")
    assert "a.py has no such lines in a row (the other files named here were tried too)." in told
    assert f"```\n{wrong.split('```')[1].strip()}\n```" in told
    assert f"Did you mean these actual lines 15-27 of a.py?\n```\n{''.join(lines[14:27])}```" in told
    assert "don't re-send them" in told
    assert error.result is not None
    assert error.result.metadata["diff"].count("@@ -") == 2
    assert (error.result.metadata["applied"], error.result.metadata["failed"]) == (2, 1)
    assert error.result.title == "1 of 3 SEARCH/REPLACE blocks failed"


async def test_nothing_is_written_unless_all_match_if_that_is_asked_for(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("a\n")
    content = block("a.py", "a\n", "x\n") + block("a.py", "nope\n", "y\n")

    error = await failing(ctx, content, atomic=True)

    assert tree(workspace) == {"a.py": b"a\n"}
    assert error.message.endswith("Nothing was written. Send a corrected version of the SEARCH/REPLACE block that"
                                  " failed together with the others.")  # fmt: skip
    assert error.details is not None
    assert (len(error.details["failed"]), error.details["applied"]) == (1, [])
    assert error.result is not None
    assert (error.result.metadata["diff"], error.result.metadata["applied"]) == ("", 0)


async def test_all_that_match_are_written_at_once(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("a\n")

    result = await edit(ctx, block("a.py", "a\n", "x\n"), atomic=True)

    assert (tree(workspace), result.metadata["applied"]) == ({"a.py": b"x\n"}, 1)


async def test_new_lines_that_are_there_already_are_told(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("a\nnew\nb\n")

    error = await failing(ctx, block("a.py", "old\n", "new\n"))

    assert "The new lines are already in a.py: is this SEARCH/REPLACE block still needed?" in report(error)
    assert "Did you mean" not in report(error)
    assert error.message.endswith(
        "Nothing was written. Send a corrected version of the SEARCH/REPLACE block that failed."
    )


async def test_a_report_has_an_end(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("a\n")
    wrong = "".join(f"wrong {number}\n" for number in range(100))

    error = await failing(ctx, block("a.py", wrong, "x\n") * 23)

    assert report(error).count("## SEARCH/REPLACE block") == 20
    assert "wrong 50" in report(error)
    assert "wrong 90" not in report(error)
    assert "[44 more lines]" in report(error)
    assert "Not shown: SEARCH/REPLACE blocks 21, 22, 23." in report(error)


async def test_what_is_quoted_is_fenced_by_more_than_it_has(ctx: Context, workspace: Path) -> None:
    error = await failing(ctx, block("a.md", "```\nx\n```\n", "y\n"))

    assert "````\n<<<<<<< SEARCH\n```\nx\n```\n=======\ny\n>>>>>>> REPLACE\n````" in report(error)


async def test_a_file_that_does_not_exist_is_told(ctx: Context, workspace: Path) -> None:
    error = await failing(ctx, block("a.py", "old\n", "new\n"))

    assert "a.py does not exist. To create it, leave out the lines to find." in report(error)
    assert tree(workspace) == {}


async def test_a_block_for_the_wrong_file_is_made_in_the_only_other_named_one_it_fits(
    ctx: Context, workspace: Path
) -> None:
    (workspace / "a.py").write_text("a\n")
    (workspace / "b.py").write_text("b\nc\n")
    (workspace / "unnamed.py").write_text("nowhere\n")
    content = block("a.py", "a\n", "A\n") + block("b.py", "b\n", "B\n") + block("a.py", "c\n", "C\n")

    result = await edit(ctx, content)
    error = await failing(ctx, block("a.py", "nowhere\n", "x\n"))

    assert tree(workspace) == {"a.py": b"A\n", "b.py": b"B\nC\n", "unnamed.py": b"nowhere\n"}
    assert result.metadata["edits"][2] == {
        "block": 3, "line": 19, "path": "b.py", "strategy": "exact", "places": 1, "meant": "a.py"
    }  # fmt: skip
    assert "block 3 does not match a.py; it is applied to b.py" in result.output
    assert "tried too" not in report(error)


@pytest.mark.parametrize("other", ["c\nc\n", "c\n"])
async def test_a_block_for_the_wrong_file_is_not_guessed_where_several_places_fit(
    ctx: Context, workspace: Path, other: str
) -> None:
    names = ("b.py", "d.py") if other == "c\n" else ("b.py",)
    for name in names:
        (workspace / name).write_text(other)
    named = "".join(block(name, "", "") for name in names)

    error = await failing(ctx, block("a.py", "c\n", "C\n") + named)

    assert error.details is not None
    assert error.details["failed"][0]["reason"] == "no_file"
    assert set(tree(workspace).values()) == {other.encode()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\n", b"a\r\nx\r\ny\r\n"),
        (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nx\ny\n"),
        (b"a\nb", b"a\nx\ny"),
        (b"\xef\xbb\xbfa\r\nb", b"\xef\xbb\xbfa\r\nx\r\ny"),
    ],
)
@pytest.mark.parametrize("format", ["search_replace", "udiff", "whole"])
async def test_line_ends_the_mark_and_an_open_end_stay(
    ctx: Context, workspace: Path, before: bytes, after: bytes, format: str
) -> None:
    (workspace / "a.txt").write_bytes(before)
    content = {
        "search_replace": block("a.txt", "a\nb\n", "a\nx\ny\n"),
        "udiff": diff("a.txt", " a\n-b\n+x\n+y\n"),
        "whole": "a.txt\n```\na\nx\ny\n```",
    }[format]

    await edit(ctx, content, format)

    assert tree(workspace) == {"a.txt": after}


async def test_a_new_file_has_plain_line_ends(ctx: Context, workspace: Path) -> None:
    await edit(ctx, block("a.txt", "", "a\nb\n").replace("\n", "\r\n"))

    assert tree(workspace) == {"a.txt": b"a\nb\n"}


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("search_replace", block("a.txt", "b\n", "B\n") + block("n/new.txt", "", "n\n")),
        ("udiff", diff("a.txt", "-b\n+B\n") + "```diff\n--- /dev/null\n+++ b/n/new.txt\n@@ @@\n+n\n```"),
        ("whole", "a.txt\n```\na\nB\nc\n```\nn/new.txt\n```\nn\n```\n"),
    ],
)
async def test_a_dry_run_tells_what_would_change_and_writes_nothing(
    ctx: Context, workspace: Path, format: str, content: str
) -> None:
    (workspace / "a.txt").write_text("a\nb\nc\n")

    dry = await edit(ctx, content, format, dry_run=True)
    between = tree(workspace)
    real = await edit(ctx, content, format)

    assert between == {"a.txt": b"a\nb\nc\n"}
    assert tree(workspace) == {"a.txt": b"a\nB\nc\n", "n/new.txt": b"n\n"}
    assert dry.metadata == real.metadata | {"dry_run": True}
    assert dry.output.startswith("Dry run, nothing was written: 2 ")
    assert dry.output.endswith(" would be applied.\nM a.txt\nA n/new.txt")


async def test_a_dry_run_fails_as_the_real_run_would(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")
    content = block("a.txt", "a\n", "b\n") + block("a.txt", "nope\n", "c\n")

    dry = await failing(ctx, content, dry_run=True)
    between = tree(workspace)
    real = await failing(ctx, content)

    assert between == {"a.txt": b"a\n"}
    assert dry.details == real.details
    assert dry.message.endswith("nothing was written; 1 SEARCH/REPLACE block would be applied.")


async def test_hunks_are_made_and_files_made_and_removed(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb\n")
    (workspace / "old.txt").write_text("one\ntwo\n")
    (workspace / "gone.txt").write_text("whatever\n")
    content = (
        diff("a.txt", "@@ -10,2 +10,2 @@\n a\n-b\n+B\n@@ @@\n+c\n")
        + "```diff\n--- /dev/null\n+++ b/new.txt\n@@ @@\n+1\n@@ @@\n+2\n```\n"
        + "```diff\n--- a/old.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n```\n"
        + "```diff\n--- a/gone.txt\n+++ /dev/null\n```\n"
    )

    result = await edit(ctx, content, "udiff")

    assert tree(workspace) == {"a.txt": b"a\nB\nc\n", "new.txt": b"1\n2\n"}
    assert result.output == "6 hunks applied.\nM a.txt\nA new.txt\nD old.txt\nD gone.txt"
    assert [view["strategy"] for view in result.metadata["edits"]] == [
        "exact", "append", "new_file", "append", "delete", "delete"
    ]  # fmt: skip
    assert (result.metadata["additions"], result.metadata["deletions"]) == (4, 4)


@pytest.mark.parametrize(
    ("content", "reason", "said"),
    [
        (diff("a.txt", "-x\n+y\n"), "not_unique", "a.txt has more than one place that matches, at lines 1 and 3."),
        (diff("a.txt", " x\n-q\n+y\n"), "no_match", "a.txt has no such lines in a row."),
        (diff("b.txt", "-x\n+y\n"), "no_file", "b.txt does not exist."),
        ("```diff\n--- /dev/null\n+++ b/a.txt\n+y\n```", "file_exists", "a.txt exists already"),
        ("```diff\n--- a/a.txt\n+++ /dev/null\n-x\n```", "not_whole", "a.txt is to be removed (`+++ /dev/null`), but"),
        ("```diff\n--- a/b.txt\n+++ /dev/null\n-x\n```", "no_file", "b.txt does not exist."),
    ],
)
async def test_a_hunk_that_cannot_be_made_says_why(
    ctx: Context, workspace: Path, content: str, reason: str, said: str
) -> None:
    (workspace / "a.txt").write_text("x\nb\nx\n")

    error = await failing(ctx, content, "udiff")

    assert error.details is not None
    assert [view["reason"] for view in error.details["failed"]] == [reason]
    assert said in report(error)
    assert reason != "not_unique" or "Did you mean" not in report(error)
    assert tree(workspace) == {"a.txt": b"x\nb\nx\n"}


async def test_every_place_is_changed_only_when_that_is_said(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\nb\nx\n")

    result = await edit(ctx, diff("a.txt", "-x\n+y\n"), "udiff", replace_all=True)

    assert tree(workspace) == {"a.txt": b"y\nb\ny\n"}
    assert result.metadata["edits"] == [{"block": 1, "line": 4, "path": "a.txt", "strategy": "exact", "places": 2}]


async def test_the_lines_nearest_to_a_hunk_are_shown(ctx: Context, workspace: Path) -> None:
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
    (workspace / "a.txt").write_text("".join(f"{name}_value = compute()\n" for name in names))

    error = await failing(ctx, diff("a.txt", "-theta_value = compute(\n+theta_value = 1\n"), "udiff")

    assert "Did you mean these actual lines 3-12 of a.txt?\n```\ngamma_value = compute()\n" in report(error)


async def test_whole_files_are_written(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb\nc\n")
    (workspace / "same.txt").write_text("same\n")

    result = await edit(ctx, "a.txt\n```\na\nX\nc\n```\nsame.txt\n```\nsame\n```\nn.txt\n```\n```", "whole")

    assert tree(workspace) == {"a.txt": b"a\nX\nc\n", "same.txt": b"same\n", "n.txt": b""}
    assert result.output == "3 files applied.\nM a.txt\nA n.txt"
    assert result.metadata["diff"] == (
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+X\n c\n"
        "diff --git a/n.txt b/n.txt\nnew file mode 100644\n"
    )


async def test_what_is_there_already_is_not_written_again(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")
    before = (workspace / "a.txt").stat()

    result = await edit(ctx, block("a.txt", "a\n", "a\n"))

    assert result.output == "1 SEARCH/REPLACE block applied.\nNo file changes: all is as it should be."
    assert (workspace / "a.txt").stat().st_ino == before.st_ino


async def test_shell_commands_are_not_run_but_told(ctx: Context, workspace: Path) -> None:
    result = await edit(ctx, block("a.txt", "", "a\n") + "```bash\ntouch b.txt\n```\n")

    assert tree(workspace) == {"a.txt": b"a\n"}
    assert result.metadata["shell_commands"] == ["touch b.txt"]
    assert result.output.endswith("Shell commands in the text were not run (1); use a shell tool for them.")


async def test_the_callers_file_is_for_edits_that_name_none(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")

    await edit(ctx, "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", file_path="a.txt")
    await edit(ctx, "```diff\n-b\n+c\n```", "udiff", file_path=str(workspace / "a.txt"))

    assert tree(workspace) == {"a.txt": b"c\n"}


PATCH = "*** Begin Patch\n*** Update File: a.txt\n-a\n+b\n*** Add File: new.txt\n+n\n*** End Patch"


async def test_a_patch_is_applied_as_apply_patch_does(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")

    result = await edit(ctx, PATCH, "patch")

    assert tree(workspace) == {"a.txt": b"b\n", "new.txt": b"n\n"}
    assert result.output == "Success. Updated the following files:\nA new.txt\nM a.txt\n"
    assert (result.metadata["format"], result.metadata["additions"], result.metadata["deletions"]) == ("patch", 2, 1)


async def test_a_dry_run_of_a_patch_tells_what_it_would_do(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\n")

    foretold = await edit(ctx, PATCH, "patch", dry_run=True)

    assert tree(workspace) == {"a.txt": b"a\n"}
    assert foretold.output == "The patch fits, and would update the following files:\nA new.txt\nM a.txt\n"
    done = await edit(ctx, PATCH, "patch")
    assert foretold.metadata == done.metadata | {"dry_run": True}


def test_a_patch_that_cannot_be_read_is_refused_before_anybody_is_asked(ctx: Context) -> None:
    with pytest.raises(InvalidArgs, match="cannot be read"):
        tool.parse({"format": "patch", "content": "*** Begin Patch\nnonsense\n*** End Patch"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"content": "no block"}, "Expected a block that begins with `<<<<<<< SEARCH`"),
        ({"content": "a\0b"}, "NUL"),
        ({"content": ""}, "`content`"),
        ({"content": block("a", "", "\ud800\n")}, "`content`"),
        ({"content": block("a", "", ""), "format": "diff"}, "`format`"),
        ({"content": block("a", "", ""), "replace_all": True}, "replace_all goes with the format udiff only"),
        ({"content": block("a", "", ""), "path": "a"}, "`path` is not a parameter"),
    ],
)
def test_a_mistake_is_told_before_anything_is_asked(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgs) as caught:
        tool.parse({"format": "search_replace"} | arguments)

    assert said in caught.value.message


def test_it_needs_to_edit_each_file_it_names_by_its_own_name(ctx: Context, workspace: Path) -> None:
    (workspace / "real.txt").touch()
    (workspace / "link.txt").symlink_to("real.txt")
    content = block("link.txt", "a\n", "b\n") + block(str(workspace / "new.txt"), "", "x\n") + block("real.txt", "", "")

    args = tool.parse({"format": "search_replace", "content": content})
    dry = tool.parse({"format": "search_replace", "content": content, "dry_run": True})

    assert tool.needs(args, ctx.workspace) == [Need("edit", "real.txt"), Need("edit", "new.txt")]
    assert tool.needs(dry, ctx.workspace) == [Need("read", "real.txt"), Need("read", "new.txt")]
    assert (tool.effect_of(args), tool.effect_of(dry)) == (Effect.WRITE, Effect.READ)


async def test_a_link_is_followed_and_stays_a_link(ctx: Context, workspace: Path) -> None:
    (workspace / "real.txt").write_text("a\n")
    (workspace / "link.txt").symlink_to("real.txt")

    await edit(ctx, block("link.txt", "a\n", "b\n"))

    assert (workspace / "link.txt").is_symlink()
    assert (workspace / "real.txt").read_text() == "b\n"


@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize(
    ("path", "kind"),
    [("../x", OutsideWorkspace), ("/etc/passwd", OutsideWorkspace), ("a/.git/config", PermissionDenied)],
)
def test_nothing_outside_and_nothing_of_git_is_touched(
    ctx: Context, path: str, kind: type[CallError], is_dry: bool
) -> None:
    args = tool.parse({"format": "search_replace", "content": block(path, "", "x\n"), "dry_run": is_dry})

    with pytest.raises(kind):
        tool.needs(args, ctx.workspace)


@pytest.mark.parametrize(
    ("name", "data", "kind", "code"),
    [
        ("bad", b"a\n\0", BinaryFile, "BinaryFile"),
        ("bad", b"a\ncaf\xe9\n", FileFailed, "EILSEQ"),
        ("folder", None, FileFailed, "EISDIR"),
    ],
)
async def test_where_one_file_cannot_be_edited_none_is(
    ctx: Context, workspace: Path, name: str, data: bytes | None, kind: type[CallError], code: str
) -> None:
    (workspace / "a.txt").write_text("a\n")
    if data is None:
        (workspace / name).mkdir()
    else:
        (workspace / name).write_bytes(data)
    before = tree(workspace)

    with pytest.raises(kind) as caught:
        await edit(ctx, block("a.txt", "a\n", "b\n") + block(name, "a\n", "b\n"))

    assert (caught.value.code, tree(workspace)) == (code, before)


@pytest.mark.parametrize("is_dry", [True, False])
async def test_a_file_cannot_have_files_in_it(ctx: Context, workspace: Path, is_dry: bool) -> None:
    content = block("a", "", "x\n") + block("a/b/c", "", "y\n")

    with pytest.raises(InvalidArgs, match="a cannot be a file and have a/b/c in it"):
        await edit(ctx, content, dry_run=is_dry)

    assert tree(workspace) == {}


async def test_a_file_that_changes_meanwhile_is_not_overwritten(workspace: Path, toy: ToyContext) -> None:
    class Raced(LocalWorkspace):
        def load(
            self, path: str, *, approved: Collection[str] | None = None, limit: int = MAX_LOADED_BYTES
        ) -> Snapshot:
            loaded = super().load(path, approved=approved, limit=limit)
            if path == "b.txt":
                (workspace / path).write_text("somebody else's\n")
            return loaded

    (workspace / "a.txt").write_text("a\n")
    (workspace / "b.txt").write_text("b\n")
    ctx = ToyContext(workspace=Raced(workspace))

    with pytest.raises(FileFailed) as caught:
        await edit(ctx, block("b.txt", "b\n", "B\n"))

    assert caught.value.code == "ESTALE"
    assert tree(workspace) == {"a.txt": b"a\n", "b.txt": b"somebody else's\n"}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_canceled_call_writes_nothing(workspace: Path, toy: ToyContext, is_late: bool) -> None:
    stop = Event()

    class Canceling(LocalWorkspace):
        def load(
            self, path: str, *, approved: Collection[str] | None = None, limit: int = MAX_LOADED_BYTES
        ) -> Snapshot:
            stop.set()
            return super().load(path, approved=approved, limit=limit)

    (workspace / "a.txt").write_text("a\n")
    args = tool.parse({"format": "search_replace", "content": block("a.txt", "a\n", "b\n")})
    if not is_late:
        stop.set()

    with pytest.raises(Canceled):
        _apply(args, ToyContext(workspace=Canceling(workspace)), stop)

    assert tree(workspace) == {"a.txt": b"a\n"}


@pytest.mark.parametrize(("model", "suits"), [(None, True), ("claude-x", True), ("gpt-5", False), ("gpt-4o", True)])
def test_it_suits_models_that_were_not_taught_patches(model: str | None, suits: bool) -> None:
    assert tool.suits is not None
    assert tool.suits(Audience(model=model)) is suits


async def test_a_failed_call_keeps_its_report_and_its_details(data_dir: Path, tmp_path: Path) -> None:
    class Filled(Toys):
        tools = (tool,)

    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.txt").write_text("a\n")
    crib = await Crib(data_dir, Filled(), workspace=tmp_path / "ws").open()
    content = block("a.txt", "b\n", "c\n")

    call = await crib.run("apply_edits", {"format": "search_replace", "content": content, "dry_run": True})
    await crib.close()

    assert (call["status"], call["error"]["code"]) == ("error", "EditMismatch")
    assert [view["block"] for view in call["error"]["details"]["failed"]] == [1]
    assert call["result"]["output"].startswith("# 1 of 1 SEARCH/REPLACE block failed to match")
