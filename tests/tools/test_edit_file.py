import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Audience, Context
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.files.edit_file import tool
from tests.tools.conftest import ToyContext

[edit_alias] = tool.aliases
MARK = b"\xef\xbb\xbf"


async def edit(ctx: Context, path: str, old: str, new: str, **more: Any) -> Result:
    async with asyncio.timeout(20):
        return await tool.run(tool.parse({"file_path": path, "old_string": old, "new_string": new, **more}), ctx)


async def failure(ctx: Context, path: str, old: str, new: str = "new", **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await edit(ctx, path, old, new, **more)
    return caught.value


async def test_the_file_is_changed_and_the_diff_is_told(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d/a.py").write_text("one\ntwo\nthree\n")

    result = await edit(ctx, "d/a.py", "two", "2")

    assert (workspace / "d/a.py").read_text() == "one\n2\nthree\n"
    assert result == Result(
        output="Edit applied successfully.",
        title="d/a.py",
        metadata={
            "diff": "--- a/d/a.py\n+++ b/d/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n",
            "additions": 1,
            "deletions": 1,
            "files": [{"path": "d/a.py", "kind": "modified", "additions": 1, "deletions": 1}],
            "strategy": "SimpleReplacer",
            "replacements": 1,
        },
    )


async def test_a_match_that_is_not_to_the_letter_is_told_with_its_lines(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("class A:\n    def f(self):\n        return 1\n")

    result = await edit(ctx, "a.py", "def f(self):\n    return 1", "def f(self):\n    return 2")

    assert (workspace / "a.py").read_text() == "class A:\n    def f(self):\n        return 2\n"
    assert result.output == (
        "Edit applied successfully. old_string was not found exactly: LineTrimmedReplacer matched lines 2-3."
        " Check them."
    )
    assert result.metadata["strategy"] == "LineTrimmedReplacer"


async def test_all_occurrences_can_be_replaced(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a b a\n\na\n")

    result = await edit(ctx, "a.txt", "a", "$&", replace_all=True)

    assert (workspace / "a.txt").read_text() == "$& b $&\n\n$&\n"
    assert result.output == "Edit applied successfully. 3 places were changed."
    assert result.metadata["replacements"] == 3


async def test_strict_takes_only_what_is_there_to_the_letter(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("  a\n")

    error = await failure(ctx, "a.txt", "a ", strict=True)

    assert error.code == "EditMismatch"
    assert (workspace / "a.txt").read_text() == "  a\n"
    assert (await edit(ctx, "a.txt", "a ", "b")).metadata["strategy"] == "LineTrimmedReplacer"


@pytest.mark.parametrize("mark", [b"", MARK])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("last", [b"", b"end"])
async def test_line_ends_mark_and_missing_last_end_are_kept(
    ctx: Context, workspace: Path, mark: bytes, end: bytes, last: bytes
) -> None:
    (workspace / "a.txt").write_bytes(mark + b"one" + end + b"two" + end + last)

    await edit(ctx, "a.txt", "one\ntwo", "1\n2\n3")

    assert (workspace / "a.txt").read_bytes() == mark + b"1" + end + b"2" + end + b"3" + end + last


async def test_the_mode_of_the_file_is_kept(ctx: Context, workspace: Path) -> None:
    (workspace / "run.sh").write_text("echo 1\n")
    (workspace / "run.sh").chmod(0o750)

    await edit(ctx, "run.sh", "1", "2")

    assert (workspace / "run.sh").stat().st_mode & 0o777 == 0o750


async def test_an_empty_old_string_makes_a_new_file(ctx: Context, workspace: Path) -> None:
    result = await edit(ctx, "new/deep/a.txt", "", "hello\n")

    assert (workspace / "new/deep/a.txt").read_text() == "hello\n"
    assert result.output == "Edit applied successfully. new/deep/a.txt is new."
    assert (result.metadata["files"][0]["kind"], result.metadata["strategy"]) == ("added", None)


@pytest.mark.parametrize("content", ["", "text"])
async def test_an_empty_old_string_does_not_touch_a_file_that_exists(
    ctx: Context, workspace: Path, content: str
) -> None:
    (workspace / "a.txt").write_text(content)

    error = await failure(ctx, "a.txt", "")

    assert (error.code, (workspace / "a.txt").read_text()) == ("EEXIST", content)
    assert "use write_file" in error.message


@pytest.mark.parametrize("same", ["", "a"])
def test_two_strings_that_are_the_same_change_nothing(same: str) -> None:
    with pytest.raises(InvalidArgs, match="`new_string`: is the same as old_string"):
        tool.parse({"file_path": "a", "old_string": same, "new_string": same})


async def test_an_edit_that_is_made_but_for_white_space_writes_nothing(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("    a\n")
    before = (workspace / "a.txt").stat()

    result = await edit(ctx, "a.txt", "a ", "a")

    assert result.output == "a.txt has this text already (line 1); nothing was written."
    assert (result.metadata["diff"], (workspace / "a.txt").stat().st_ino) == ("", before.st_ino)


async def test_what_is_not_found_is_answered_with_the_nearest_lines(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("import os\n\ndef total(items):\n    return sum(items)\n")

    error = await failure(ctx, "a.py", "def total(item):\n    return max(item)\n")

    assert error.as_dict() == {
        "code": "EditMismatch",
        "message": (
            "old_string is not in a.py. Did you mean to replace these lines?\n"
            "L3: def total(items):\n"
            "L4:     return sum(items)"
        ),
        "retryable": False,
        "details": {
            "path": "a.py",
            "reason": "not_found",
            "nearest": {"line": 3, "text": "def total(items):\n    return sum(items)"},
        },
    }


async def test_nothing_of_a_file_is_shown_that_may_not_be_read(ctx: Context, workspace: Path, toy: ToyContext) -> None:
    (workspace / "secret.env").write_text("KEY=hunter2\n")
    toy.forbidden.add(Need("read", "secret.env"))

    error = await failure(ctx, "secret.env", "KEY=hunter3", "KEY=hunter2")

    assert "hunter" not in str(error.as_dict())
    assert (
        error.message
        == "old_string is not in secret.env. Read the file again, and give the text exactly as it is there."
    )


async def test_an_edit_that_was_made_before_is_recognised(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_bytes(b"x = 1\r\n\r\nlimit = 20\r\nrate = 3\r\n")

    error = await failure(ctx, "a.py", "some_other_name = None\n", "limit = 20\nrate = 3\n")

    assert (
        error.message
        == "old_string is not in a.py. But new_string is, in line 3: the edit seems to be applied already."
    )
    assert error.details == {"path": "a.py", "reason": "not_found", "already_applied": 3}


async def test_what_is_there_more_than_once_is_told_with_its_lines(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\ny\nx\n")

    error = await failure(ctx, "a.txt", "x")

    assert error.message == (
        "In a.txt, old_string occurs 2 times (lines 1, 3); give more of the surrounding text to make it unique,"
        " or set replace_all to change all of them."
    )
    assert error.details == {"path": "a.txt", "reason": "ambiguous", "count": 2, "lines": [1, 3]}


async def test_a_match_out_of_proportion_is_refused(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb\nc\nd")

    error = await failure(ctx, "a.txt", "a\\nb\\nc\\nd")

    assert (error.code, (error.details or {})["reason"]) == ("EditMismatch", "disproportionate")
    assert "read the file again" in error.message


async def test_a_missing_file_is_answered_with_its_nearest_neighbours(ctx: Context, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src/main.py").touch()

    error = await failure(ctx, "src/mian.py", "x")
    far = await failure(ctx, "no/such/folder.py", "x")

    assert (error.code, error.message) == ("ENOENT", "src/mian.py does not exist. Did you mean src/main.py?")
    assert (far.code, far.message) == ("ENOENT", "no/such/folder.py does not exist.")


async def test_a_folder_a_pipe_and_what_is_outside_are_refused(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    os.mkfifo(workspace / "pipe")
    (workspace / "out").symlink_to("/etc/hostname")

    assert [(await failure(ctx, path, "x")).code for path in ("d", "pipe")] == ["EISDIR", "EINVAL"]
    for path in ("/etc/hostname", "../x", "out"):
        assert isinstance(await failure(ctx, path, "x"), OutsideWorkspace)


async def test_a_file_that_cannot_be_read_is_told(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, to whom nothing is unreadable."""
    (workspace / "a.txt").write_text("x")

    def closed(*args: Any, **more: Any) -> None:
        raise FileFailed(errno.EACCES, "a.txt")

    monkeypatch.setattr(LocalWorkspace, "load", closed)

    assert (await failure(ctx, "a.txt", "x")).code == "EACCES"


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x89PNG\0\0", "BinaryFile"), ("café".encode("latin-1"), "EILSEQ"), ("a".encode("utf-16"), "EILSEQ")],
)
async def test_what_is_not_utf8_is_left_as_it_is(ctx: Context, workspace: Path, data: bytes, code: str) -> None:
    (workspace / "a.txt").write_bytes(data)

    error = await failure(ctx, "a.txt", "a", "b")

    assert (error.code, (workspace / "a.txt").read_bytes()) == (code, data)


async def test_characters_that_cannot_be_written_are_refused(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a")

    error = await failure(ctx, "a.txt", "a", "\ud800")

    assert (error.code, (workspace / "a.txt").read_text()) == ("InvalidArgs", "a")


async def test_a_link_inside_the_workspace_stays_a_link(ctx: Context, workspace: Path) -> None:
    (workspace / "real.txt").write_text("one\n")
    (workspace / "link.txt").symlink_to("real.txt")

    result = await edit(ctx, "link.txt", "one", "two")

    assert (workspace / "link.txt").is_symlink()
    assert (workspace / "real.txt").read_text() == "two\n"
    assert result.metadata["files"][0]["path"] == "real.txt"


async def test_an_absolute_path_inside_the_workspace_will_do(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")

    result = await edit(ctx, str(workspace / "a.txt"), "one", "two")

    assert result.metadata["diff"].startswith("--- a/a.txt\n+++ b/a.txt\n")


async def test_a_file_that_changed_meanwhile_is_not_written_over(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes between the reading and the writing."""
    (workspace / "a.txt").write_text("one\n")
    commit = LocalWorkspace.commit

    def late(*args: Any, **more: Any) -> None:
        (workspace / "a.txt").write_text("something longer\n")
        commit(*args, **more)

    monkeypatch.setattr(LocalWorkspace, "commit", late)

    assert (await failure(ctx, "a.txt", "one")).code == "ESTALE"
    assert (workspace / "a.txt").read_text() == "something longer\n"


async def test_the_file_that_was_approved_is_the_one_that_is_changed(ctx: Context, workspace: Path) -> None:
    (workspace / "other.txt").write_text("one\n")
    (workspace / "link.txt").symlink_to("other.txt")
    approved = replace(ctx, approved=frozenset({"public.txt"}))

    assert (await failure(approved, "link.txt", "one")).code == "ESTALE"
    assert (await failure(approved, "new.txt", "", "x")).code == "ESTALE"
    assert (workspace / "other.txt").read_text() == "one\n"


async def test_a_call_that_is_canceled_meanwhile_writes_nothing(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is canceled while the file is read; the thread that reads it finds out later."""
    (workspace / "a.txt").write_text("one\n")
    loop, reading, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    load = LocalWorkspace.load

    def slow(*args: Any, **more: Any) -> Any:
        loop.call_soon_threadsafe(reading.set)
        assert go.wait(5)
        return load(*args, **more)

    monkeypatch.setattr(LocalWorkspace, "load", slow)
    call = asyncio.create_task(edit(ctx, "a.txt", "one", "two"))
    async with asyncio.timeout(20):
        await reading.wait()
        call.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert (workspace / "a.txt").read_text() == "one\n"


def test_it_needs_to_edit_the_file_by_its_canonical_name(ctx: Context, workspace: Path) -> None:
    (workspace / "real.txt").touch()
    (workspace / "link.txt").symlink_to("real.txt")
    args = {"file_path": "link.txt", "old_string": "a", "new_string": "b"}

    assert tool.needs(tool.parse(args), ctx.workspace) == [Need("edit", "real.txt")]


def test_git_itself_is_not_edited(ctx: Context) -> None:
    args = tool.parse({"file_path": "sub/.git/config", "old_string": "a", "new_string": "b"})

    with pytest.raises(CallError) as caught:
        tool.needs(args, ctx.workspace)

    assert caught.value.code == "PermissionDenied"


def test_the_alias_takes_the_names_its_users_know() -> None:
    assert edit_alias.name == "edit"
    assert edit_alias.adapt is not None
    theirs = {"filePath": "a", "oldString": "b", "newString": "c", "replaceAll": "true"}

    args = tool.parse(edit_alias.adapt(theirs))

    assert args.model_dump() == {
        "file_path": "a",
        "old_string": "b",
        "new_string": "c",
        "replace_all": True,
        "strict": False,
    }
    wrong: list[Any] = [theirs | {"more": 1}, None, [], "text", {1: 2}, {}]
    for raw in wrong:
        with pytest.raises(InvalidArgs):
            tool.parse(edit_alias.adapt(raw))


@pytest.mark.parametrize(("model", "suits"), [(None, True), ("claude-x", True), ("gpt-4o", True), ("gpt-5", False)])
def test_it_is_for_models_that_do_not_edit_by_patches(model: str | None, suits: bool) -> None:
    assert tool.suits is not None
    assert tool.suits(Audience(model=model)) is suits


TEXT = st.text("ab \n\r\t\\$é\ufeff\0", max_size=12)


RANDOM_ARGS = st.fixed_dictionaries(
    {
        "path": st.sampled_from(["a.txt", "a.txt", "a.txt", "new.txt", "/", "", "a.txt/b", "../a.txt"]),
        "old": TEXT,
        "new": TEXT,
        "replace_all": st.booleans(),
        "strict": st.booleans(),
    }
)
DATA = TEXT.map(str.encode) | TEXT.map(lambda text: MARK + text.encode()) | st.binary(max_size=20)
SHARED = [HealthCheck.function_scoped_fixture]


@pytest.mark.sampled
@given(DATA, RANDOM_ARGS)
@settings(suppress_health_check=SHARED)
def test_any_edit_ends_in_a_change_or_a_typed_error(
    ctx: Context, workspace: Path, data: bytes, args: dict[str, Any]
) -> None:
    """Whatever is asked, the file is edited or there is a typed answer and the file is as it was."""
    (workspace / "a.txt").write_bytes(data)
    try:
        result = asyncio.run(edit(ctx, **args))
    except CallError:
        assert (workspace / "a.txt").read_bytes() == data
    else:
        assert result.metadata["strategy"] or args["old"] == ""
    assert {path.name for path in workspace.iterdir()} <= {"a.txt", "new.txt"}
    (workspace / "new.txt").unlink(missing_ok=True)
