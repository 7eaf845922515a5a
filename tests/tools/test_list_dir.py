import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace
from app.core.rules import Need
from app.core.tools import Context
from app.dispatch.tools.registry import Registry
from app.tools.files import _shared
from app.tools.files.list_dir import tool

# The peer wants absolute paths; ours are relative to the workspace.
ACCEPTED_ON_PURPOSE = {"list_dir-197"}
CODES = {"list_dir-198": "ENOENT"}


async def listing(ctx: Context, **arguments: Any) -> list[str]:
    async with asyncio.timeout(20):
        result = await tool.run(tool.parse(arguments), ctx)
    head, *lines = result.output.split("\n")
    assert head.startswith("Absolute path: ")
    return lines


async def test_it_answers_as_the_peer_was_recorded(case: dict[str, Any], ctx: Context, recorded: Path) -> None:
    arguments = {
        name: value.replace("{root}", str(recorded)) if isinstance(value, str) else value
        for name, value in case["arguments"].items()
    }
    if case["id"] in ACCEPTED_ON_PURPOSE:
        assert await listing(ctx, **arguments) == await listing(ctx, dir_path=str(recorded / arguments["dir_path"]))
    elif case["ok"]:
        result = await tool.run(tool.parse(arguments), ctx)
        assert result.output == case["output"].replace("{root}", str(recorded))
    else:
        with pytest.raises(CallError) as caught:
            await listing(ctx, **arguments)
        assert caught.value.code == CODES[case["id"]]


async def test_without_arguments_the_workspace_itself_is_listed(ctx: Context, workspace: Path) -> None:
    (workspace / "a").touch()

    result = await tool.run(tool.parse({}), ctx)

    assert result.output == f"Absolute path: {workspace}\na"
    assert result.metadata == {"entries": 1, "has_more": False, "next_offset": None}


async def test_what_is_in_a_folder_stands_directly_under_it(ctx: Context, workspace: Path) -> None:
    for folder in ("a", "a-b"):
        (workspace / folder).mkdir()
        (workspace / folder / "x").touch()

    assert await listing(ctx) == ["a/", "  x", "a-b/", "  x"]


async def test_names_are_ordered_by_their_bytes(ctx: Context, workspace: Path) -> None:
    for name in ("é", "z", "Z", "a.txt", "a", "\U0001f600", "\uffee"):
        (workspace / name).touch()

    assert await listing(ctx) == ["Z", "a", "a.txt", "z", "é", "\uffee", "\U0001f600"]


@pytest.mark.parametrize("depth", [1, 2, 3, 10**30])
async def test_it_goes_down_as_deep_as_asked(ctx: Context, workspace: Path, depth: int) -> None:
    (workspace / "1/2/3").mkdir(parents=True)

    assert await listing(ctx, depth=depth) == ["1/", "  2/", "    3/"][:depth]


async def test_a_tree_deeper_than_pythons_stack_is_listed(ctx: Context, workspace: Path) -> None:
    folders = [str(workspace) + "/d" * level for level in range(1, 1501)]
    for folder in folders:
        os.mkdir(folder)

    lines = await listing(ctx, depth=10**30, offset=1491, limit=10**30)

    for folder in reversed(folders):  # pytest's own clearing up would recurse
        os.rmdir(folder)
    assert lines == ["  " * level + "d/" for level in range(1490, 1500)]


async def test_a_listing_has_an_end_even_when_the_limit_has_none(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shared, "MAX_OUTPUT", 10)
    for number in range(9):
        (workspace / f"f{number}.txt").touch()

    result = await tool.run(tool.parse({"limit": 10**30}), ctx)

    assert result.output == f"Absolute path: {workspace}\nf0.txt\nf1.txt\nMore than 2 entries found"
    assert result.metadata == {"entries": 2, "has_more": True, "next_offset": 3}


async def test_programs_get_paths_and_types(ctx: Context, workspace: Path) -> None:
    (workspace / "d/a b").mkdir(parents=True)
    (workspace / "d/a b/x\ny").touch()
    (workspace / "d/link").symlink_to("nowhere")
    os.mkfifo(workspace / "d/pipe")

    result = await tool.run(tool.parse({"dir_path": "d"}), ctx)

    assert result.structured == {
        "entries": [
            {"path": "a b", "type": "directory"},
            {"path": "a b/x\ny", "type": "file"},
            {"path": "link", "type": "symlink"},
            {"path": "pipe", "type": "other"},
        ]
    }


async def test_a_program_that_goes_on_gets_every_entry_once(ctx: Context, recorded: Path) -> None:
    paths, offset = list[str](), 1
    while offset:
        result = await tool.run(tool.parse({"dir_path": "tree", "offset": offset, "limit": 3, "depth": 9}), ctx)
        paths += [entry["path"] for entry in result.structured["entries"]]
        offset = result.metadata["next_offset"]

    assert sorted(paths) == sorted(str(path.relative_to(recorded / "tree")) for path in (recorded / "tree").rglob("*"))


@pytest.mark.parametrize(
    ("ignore", "expected"),
    [
        (["node_modules"], ["a.py", "src/", "  a.js", "  b.py"]),
        (["*.js"], ["a.py", "node_modules/", "src/", "  b.py"]),
        (["src/*"], ["a.py", "node_modules/", "  x.js", "src/"]),
        (["./src/**", "node_modules/"], ["a.py"]),
        (["*"], []),
        (["[", "(", "a.p"], ["a.py", "node_modules/", "  x.js", "src/", "  a.js", "  b.py"]),
    ],
)
async def test_what_is_ignored_is_left_out_with_all_below_it(
    ctx: Context, workspace: Path, ignore: list[str], expected: list[str]
) -> None:
    for name in ("a.py", "node_modules/x.js", "src/a.js", "src/b.py"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).touch()

    assert await listing(ctx, ignore=ignore) == expected


async def test_a_missing_folder_is_answered_with_its_nearest_neighbours(ctx: Context, workspace: Path) -> None:
    (workspace / "src").mkdir()

    with pytest.raises(FileFailed, match=r"^scr does not exist\. Did you mean src\?$") as caught:
        await listing(ctx, dir_path="scr")

    assert caught.value.code == "ENOENT"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {}),
        ({"path": "d"}, {"dir_path": "d"}),
        ({"path": "d", "ignore": ["x"]}, {"dir_path": "d", "ignore": ["x"]}),
        ({"dir_path": "d", "depth": 1}, {"dir_path": "d", "depth": 1}),
    ],
)
def test_ls_is_the_same_tool_by_another_name(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert aliased("ls", given) == tool.parse(meant)


@pytest.mark.parametrize("given", [None, "d", {"path": 1}, {"folder": "d"}, {"path": "d", "dir_path": "d"}])
def test_what_ls_cannot_take_is_a_plain_mistake(given: Any) -> None:
    with pytest.raises(InvalidArgs, match="list_dir cannot take these arguments"):
        aliased("ls", given)


def aliased(name: str, raw: Any) -> Any:
    found = Registry([tool]).get(name, None)
    assert found is not None
    return found.parse(raw)


async def test_slices_put_together_are_the_whole(ctx: Context, recorded: Path) -> None:
    whole = await listing(ctx, dir_path="tree", limit=10**30, depth=9)
    pieces, offset = list[str](), 1
    while offset:
        result = await tool.run(tool.parse({"dir_path": "tree", "offset": offset, "limit": 4, "depth": 9}), ctx)
        pieces += result.output.split("\n")[1:][: result.metadata["entries"]]
        offset = result.metadata["next_offset"]

    assert pieces == whole


async def test_an_offset_past_the_end_says_where_the_end_is(ctx: Context, workspace: Path) -> None:
    (workspace / "only").touch()

    with pytest.raises(InvalidArgs, match=r"offset 2 is past the last entry of \., which is number 1"):
        await listing(ctx, offset=2)


@pytest.mark.parametrize("offset", [1, 7])
async def test_an_empty_folder_has_no_entries(ctx: Context, offset: int) -> None:
    assert await listing(ctx, offset=offset) == []


@pytest.mark.parametrize("name", ["offset", "limit", "depth"])
def test_numbers_start_at_one_and_may_come_as_text(name: str) -> None:
    with pytest.raises(InvalidArgs, match=f"`{name}`"):
        tool.parse({name: 0})

    assert getattr(tool.parse({name: "3"}), name) == 3


async def test_a_name_with_a_line_break_stays_one_line(ctx: Context, workspace: Path) -> None:
    (workspace / "a\nb/").mkdir()

    assert await listing(ctx) == ["a\\nb/"]


async def test_a_name_that_is_not_utf8_is_shown_with_replacements_and_entered(ctx: Context, workspace: Path) -> None:
    folder = os.fsencode(workspace) + b"/caf\xe9"
    os.mkdir(folder)
    os.close(os.open(folder + b"/x", os.O_CREAT))
    approved = replace(ctx, approved=frozenset({"."}))

    assert await listing(approved) == ["caf\ufffd/", "  x"]


async def test_a_long_name_is_cut_at_a_whole_character(ctx: Context, workspace: Path) -> None:
    os.mkdir(os.fsencode(workspace) + b"/" + b"\xff" * 255)

    assert await listing(ctx) == ["\ufffd" * 166 + "/"]


async def test_symlinked_folders_are_told_but_not_entered(ctx: Context, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "real/x").touch()
    (workspace / "link").symlink_to("real")
    (workspace / "etc").symlink_to("/etc")

    assert await listing(ctx) == ["etc@", "link@", "real/", "  x"]
    assert await listing(ctx, dir_path="link") == ["x"]


async def test_a_folder_that_cannot_be_read_is_shown_without_its_entries(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "gone").mkdir()
    (workspace / "kept").mkdir()
    (workspace / "kept/x").touch()
    scan = type(ctx.workspace).scan

    def scan_late(self: Any, path: str, *, approved: str | None = None) -> Any:
        if path.endswith("gone"):
            (workspace / "gone").rmdir()
        return scan(self, path, approved=approved)

    monkeypatch.setattr(type(ctx.workspace), "scan", scan_late)

    assert await listing(ctx) == ["gone/", "kept/", "  x"]


async def test_a_subfolder_swapped_for_a_link_is_not_entered(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "private").mkdir()
    (workspace / "private/key").touch()
    (workspace / "public").mkdir()
    (workspace / "public/sub").mkdir()
    scan = type(ctx.workspace).scan

    def scan_late(self: Any, path: str, *, approved: str | None = None) -> Any:
        if path.endswith("sub"):
            (workspace / "public/sub").rmdir()
            (workspace / "public/sub").symlink_to("../private")
        return scan(self, path, approved=approved)

    monkeypatch.setattr(type(ctx.workspace), "scan", scan_late)

    assert await listing(replace(ctx, approved=frozenset({"public"})), dir_path="public") == ["sub/"]


async def test_no_more_folders_are_opened_than_are_shown(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (workspace / f"d{number}").mkdir()
    scan, opened = type(ctx.workspace).scan, list[str]()

    def scan_and_tell(self: Any, path: str, *, approved: str | None = None) -> Any:
        opened.append(os.path.basename(path))
        return scan(self, path, approved=approved)

    monkeypatch.setattr(type(ctx.workspace), "scan", scan_and_tell)

    assert await listing(ctx, limit=2) == ["d0/", "d1/", "More than 2 entries found"]
    assert opened == [".", "d0", "d1"]


async def test_it_stays_in_the_workspace(ctx: Context) -> None:
    with pytest.raises(OutsideWorkspace):
        await listing(ctx, dir_path="..")


async def test_a_file_is_not_a_folder(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").touch()

    with pytest.raises(FileFailed) as caught:
        await listing(ctx, dir_path="a.txt")

    assert caught.value.code == "ENOTDIR"


async def test_a_folder_that_is_not_the_approved_one_is_not_listed(ctx: Context, workspace: Path) -> None:
    (workspace / "a").mkdir()

    with pytest.raises(FileFailed) as caught:
        await listing(replace(ctx, approved=frozenset({"b"})), dir_path="a")

    assert caught.value.code == "ESTALE"


def test_it_needs_to_read_the_folder_by_its_canonical_name(ctx: Context, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")

    assert tool.needs(tool.parse({"dir_path": "link"}), ctx.workspace) == [Need("read", "real")]
    assert tool.needs(tool.parse({}), ctx.workspace) == [Need("read", ".")]
