import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import CallError, InvalidArgs
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Audience, Context
from app.tools.files.write_file import tool

[write_alias] = tool.aliases


async def write(ctx: Context, **arguments: Any) -> Result:
    async with asyncio.timeout(20):
        return await tool.run(tool.parse(arguments), ctx)


async def test_a_new_file_is_made_with_its_folders(ctx: Context, workspace: Path) -> None:
    result = await write(ctx, file_path="d/e/a.py", content="x = 1\n")

    assert (workspace / "d/e/a.py").read_text() == "x = 1\n"
    assert result == Result(
        output="Created d/e/a.py (1 line).",
        title="d/e/a.py",
        metadata={
            "diff": "--- /dev/null\n+++ b/d/e/a.py\n@@ -0,0 +1 @@\n+x = 1\n",
            "additions": 1,
            "deletions": 0,
            "files": [{"path": "d/e/a.py", "kind": "added", "additions": 1, "deletions": 0}],
        },
    )


async def test_a_file_that_is_there_is_updated(ctx: Context, workspace: Path) -> None:
    (workspace / "run.sh").write_text("echo 1\necho 2")
    (workspace / "run.sh").chmod(0o755)

    result = await write(ctx, file_path="run.sh", content="echo 1\necho 3")

    assert ((workspace / "run.sh").read_text(), (workspace / "run.sh").stat().st_mode & 0o777) == (
        "echo 1\necho 3",
        0o755,
    )
    assert result.output == "Updated run.sh (+1 -1)."
    assert result.metadata["diff"] == (
        "--- a/run.sh\n+++ b/run.sh\n@@ -1,2 +1,2 @@\n echo 1\n"
        "-echo 2\n\\ No newline at end of file\n+echo 3\n\\ No newline at end of file\n"
    )


async def test_the_same_text_is_not_written_again(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n")
    before = (workspace / "a.txt").stat()

    result = await write(ctx, file_path="a.txt", content="x\n")

    assert (result.output, result.metadata["files"]) == ("Unchanged: a.txt has this text already.", [])
    assert (workspace / "a.txt").stat() == before


async def test_several_files_can_be_written_as_by_write_files(ctx: Context, workspace: Path) -> None:
    files = [{"path": "a", "content": "1"}, {"path": "b", "content": ""}]

    result = await write(ctx, explanation="two at once", files=files)

    assert result.output == "Created a (1 line).\nCreated b (0 lines)."
    assert ((workspace / "a").read_text(), (workspace / "b").read_text()) == ("1", "")
    args = tool.parse({"explanation": "x", "files": files})
    assert tool.needs(args, ctx.workspace) == [Need("edit", "a"), Need("edit", "b")]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"file_path": "a"}, "`content` is required"),
        ({"content": "a"}, "`file_path` is required"),
        ({"file_path": "a", "content": "b", "mode": 1}, "`mode` is not a parameter"),
        ({"file_path": "a", "content": "b", "files": []}, "`files` is not a parameter"),
        ({"explanation": "x", "files": [{"path": "a"}]}, "`files.0.content` is required"),
        ({"files": [{"path": "a", "content": "b"}]}, "`explanation` is required"),
        ({"file_path": 1, "content": "b"}, "`file_path`"),
        (None, "cannot take these arguments"),
        ("text", "cannot take these arguments"),
    ],
)
def test_other_arguments_are_refused(wrong: Any, told: str) -> None:
    with pytest.raises(InvalidArgs, match=told):
        tool.parse(wrong)


def test_models_are_told_of_the_path_and_the_text_only() -> None:
    assert (sorted(tool.schema["properties"]), tool.schema["required"]) == (
        ["content", "file_path"],
        ["file_path", "content"],
    )


def test_the_alias_takes_the_names_its_users_know() -> None:
    assert write_alias.name == "write"
    assert write_alias.adapt is not None

    args = tool.parse(write_alias.adapt({"filePath": "a", "content": "b"}))

    assert args.model_dump() == {"file_path": "a", "content": "b"}
    wrong: list[Any] = [{"filePath": "a", "content": "b", "more": 1}, None, [], "text", {1: 2}, {}]
    for raw in wrong:
        with pytest.raises(InvalidArgs):
            tool.parse(write_alias.adapt(raw))


@pytest.mark.parametrize(("model", "suits"), [(None, True), ("claude-x", True), ("gpt-4o", True), ("gpt-5", False)])
def test_it_is_for_models_that_do_not_edit_by_patches(model: str | None, suits: bool) -> None:
    assert tool.suits is not None
    assert tool.suits(Audience(model=model)) is suits


@given(
    before=st.none() | st.binary(max_size=20) | st.text("a\r\n\ufeffé", max_size=10).map(str.encode),
    content=st.text("a\r\n\ufeffé\0", max_size=10),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_what_was_given_but_for_line_ends_and_mark(
    ctx: Context, workspace: Path, before: bytes | None, content: str
) -> None:
    path = workspace / "a"
    path.unlink(missing_ok=True)
    if before is not None:
        path.write_bytes(before)
    try:
        asyncio.run(write(ctx, file_path="a", content=content))
    except CallError as error:
        assert (error.code in ("BinaryFile", "EILSEQ"), path.read_bytes()) == (True, before)  # noqa: PT017
        return

    after = path.read_bytes().decode()

    assert after.replace("\r\n", "\n").removeprefix("\ufeff") == content.replace("\r\n", "\n").removeprefix("\ufeff")
    assert before is not None or after == content
