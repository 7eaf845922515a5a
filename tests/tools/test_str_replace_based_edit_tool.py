import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, InvalidArgs
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect
from app.dispatch.tools.registry import Registry
from app.sandbox.files.workspace import LocalWorkspace
from app.tools import BUILTINS
from app.tools.files.str_replace_based_edit_tool import tool


async def edit(ctx: Context, command: str, path: str, **more: Any) -> Result:
    async with asyncio.timeout(20):
        return await tool.run(tool.parse({"command": command, "path": path, **more}), ctx)


async def failure(ctx: Context, command: str, path: str, **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await edit(ctx, command, path, **more)
    return caught.value


@pytest.mark.parametrize(
    ("view_range", "shown"),
    [
        (None, "L1: one\nL2: two\nL3: three"),
        ([2, 3], "L2: two\nL3: three"),
        ([2, 2], "L2: two"),
        ([2, -1], "L2: two\nL3: three"),
        ([3, 90], "L3: three"),
    ],
)
async def test_a_file_is_viewed_whole_or_in_a_range(
    ctx: Context, workspace: Path, view_range: list[int] | None, shown: str
) -> None:
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")

    assert (await edit(ctx, "view", "a.txt", view_range=view_range)).output == shown


async def test_a_range_to_the_end_goes_past_what_is_shown_without_one(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 3000)

    whole, ranged = await edit(ctx, "view", "a.txt"), await edit(ctx, "view", "a.txt", view_range=[1, -1])

    assert (whole.metadata["lines"], whole.metadata["next_offset"]) == (2000, 2001)
    assert (ranged.metadata["lines"], ranged.metadata["has_more"]) == (3000, False)


async def test_a_folder_is_listed_with_all_its_entries(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    for number in range(40):
        (workspace / "d" / f"{number}.txt").touch()

    result = await edit(ctx, "view", "d")

    assert result.metadata == {"entries": 40, "has_more": False, "next_offset": None}
    assert "0.txt" in result.output.splitlines()


async def test_an_absolute_path_in_the_workspace_is_taken(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")

    assert (await edit(ctx, "view", str(workspace / "a.txt"))).output == "L1: one"
    assert (await failure(ctx, "view", "/etc/passwd")).code == "OutsideWorkspace"


async def test_create_makes_a_file_and_replaces_one_that_is_there(ctx: Context, workspace: Path) -> None:
    made = await edit(ctx, "create", "d/a.py", file_text="x = 1\n")
    replaced = await edit(ctx, "create", "d/a.py", file_text="x = 2\n")

    assert (workspace / "d/a.py").read_text() == "x = 2\n"
    assert (made.output, replaced.output) == ("Created d/a.py (1 line).", "Updated d/a.py (+1 -1).")


async def test_an_empty_file_can_be_created(ctx: Context, workspace: Path) -> None:
    await edit(ctx, "create", "__init__.py", file_text="")

    assert (workspace / "__init__.py").read_bytes() == b""


async def test_a_text_that_is_there_once_is_replaced(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("one\ntwo\n")

    result = await edit(ctx, "str_replace", "a.py", old_str="two", new_str="2")

    assert (workspace / "a.py").read_text() == "one\n2\n"
    assert result.metadata["diff"] == "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"


async def test_without_a_new_text_the_old_one_goes(ctx: Context, workspace: Path) -> None:
    (workspace / "a.py").write_text("one\ntwo\n")

    await edit(ctx, "str_replace", "a.py", old_str="one\n")

    assert (workspace / "a.py").read_text() == "two\n"


@pytest.mark.parametrize("old", ["a", "  b", "c"])
async def test_what_is_not_there_once_and_to_the_letter_is_not_replaced(
    ctx: Context, workspace: Path, old: str
) -> None:
    (workspace / "a.txt").write_text("a a\n b\n")

    assert (await failure(ctx, "str_replace", "a.txt", old_str=old, new_str="new")).code == "EditMismatch"
    assert (workspace / "a.txt").read_text() == "a a\n b\n"


@pytest.mark.parametrize(
    ("before", "place", "text", "after"),
    [
        ("one\ntwo\n", 0, "zero\n", "zero\none\ntwo\n"),
        ("one\ntwo\n", 1, "and", "one\nand\ntwo\n"),
        ("one\ntwo\n", 2, "three\nfour\n", "one\ntwo\nthree\nfour\n"),
        ("one\ntwo", 2, "three\n", "one\ntwo\nthree"),
        ("one\ntwo", 1, "and", "one\nand\ntwo"),
        ("one\r\ntwo\r\n", 1, "and\nso\n", "one\r\nand\r\nso\r\ntwo\r\n"),
        ("one\r\ntwo\r\n", 2, "and\r\n", "one\r\ntwo\r\nand\r\n"),
        ("\ufeffone\n", 0, "zero", "\ufeffzero\none\n"),
        ("one\n", 1, "", "one\n\n"),
        ("", 0, "one", "one\n"),
    ],
)
async def test_lines_are_inserted_after_a_line(
    ctx: Context, workspace: Path, before: str, place: int, text: str, after: str
) -> None:
    (workspace / "a.txt").write_bytes(before.encode())

    await edit(ctx, "insert", "a.txt", insert_line=place, insert_text=text)

    assert (workspace / "a.txt").read_bytes() == after.encode()


async def test_an_insertion_tells_its_place_and_its_diff(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")

    result = await edit(ctx, "insert", "a.txt", insert_line=1, insert_text="two\nthree\n")
    top = await edit(ctx, "insert", "a.txt", insert_line=0, insert_text="zero")

    assert result == Result(
        output="Inserted 2 lines after line 1 of a.txt.",
        title="a.txt",
        metadata={
            "diff": "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,3 @@\n one\n+two\n+three\n",
            "additions": 2,
            "deletions": 0,
            "files": [{"path": "a.txt", "kind": "modified", "additions": 2, "deletions": 0}],
        },
    )
    assert top.output == "Inserted 1 line at the top of a.txt."


async def test_the_older_name_of_an_inserted_text_is_known(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n")

    await edit(ctx, "insert", "a.txt", insert_line=1, new_str="two\n")

    assert (workspace / "a.txt").read_text() == "one\ntwo\n"


async def test_nothing_is_inserted_past_the_end(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\n")

    error = await failure(ctx, "insert", "a.txt", insert_line=3, insert_text="x")

    assert (error.code, error.message) == ("InvalidArgs", "`insert_line` 3 is past the end: a.txt has 2 lines.")
    assert (workspace / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("command", "more"),
    [("view", {}), ("str_replace", {"old_str": "a"}), ("insert", {"insert_line": 0, "insert_text": "a"})],
)
async def test_a_file_that_is_not_there_is_told_with_one_that_is_near(
    ctx: Context, workspace: Path, command: str, more: dict[str, Any]
) -> None:
    (workspace / "main.py").write_text("a\n")

    error = await failure(ctx, command, "mian.py", **more)

    assert (error.code, "Did you mean main.py?" in error.message) == ("ENOENT", True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "create"}, "create also needs `file_text`."),
        ({"command": "str_replace", "new_str": "a"}, "str_replace also needs `old_str`."),
        ({"command": "str_replace", "old_str": ""}, "`old_str` is empty"),
        ({"command": "str_replace", "old_str": "a", "new_str": "a"}, "nothing to change"),
        ({"command": "insert"}, "insert also needs `insert_line` and `insert_text`."),
        ({"command": "insert", "insert_line": -1, "insert_text": "a"}, "insert_line"),
        ({"command": "view", "view_range": [0, 3]}, "`view_range` [0, 3] names no lines"),
        ({"command": "view", "view_range": [3, 2]}, "`view_range` [3, 2] names no lines"),
        ({"command": "view", "view_range": [3]}, "view_range"),
        ({"command": "undo_edit"}, "command"),
        ({"command": "view", "lines": 3}, "`lines` is not a parameter"),
    ],
)
def test_what_does_not_go_with_a_command_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgs) as caught:
        tool.parse({"path": "a.txt", **arguments})

    assert said in caught.value.message


@pytest.mark.parametrize(
    ("arguments", "permission", "effect"),
    [
        ({"command": "view"}, "read", Effect.READ),
        ({"command": "create", "file_text": ""}, "edit", Effect.WRITE),
        ({"command": "str_replace", "old_str": "a"}, "edit", Effect.WRITE),
        ({"command": "insert", "insert_line": 0, "insert_text": ""}, "edit", Effect.WRITE),
    ],
)
def test_a_command_needs_what_it_does(
    workspace: Path, arguments: dict[str, Any], permission: str, effect: Effect
) -> None:
    args = tool.parse({"path": "./d/../a.txt", **arguments})
    (workspace / "d").mkdir()
    scope = LocalWorkspace(workspace)

    assert tool.needs(args, scope) == [Need(permission, "a.txt")]
    assert tool.effect_of(args) is effect
    scope.close()


def test_it_can_be_called_and_no_list_names_it() -> None:
    registry = Registry(BUILTINS)

    assert registry.get(tool.name, None) is tool
    assert tool.name not in [listed.name for listed in registry.all(None)]
