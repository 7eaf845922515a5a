import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed, InvalidArgs, OutsideWorkspace, ProgramFailed
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools.files import grep_files
from app.tools.files.grep_files import tool
from tests.tools.conftest import ToyContext

CODES = {
    "grep_files-210": "InvalidArgs",
    "grep_files-211": "InvalidArgs",
    "grep_files-214": "ExitCode:1",
    "grep_files-217": "ENOENT",
}


async def search(ctx: Context, **arguments: Any) -> Result:
    async with asyncio.timeout(30):
        return await tool.run(tool.parse(arguments), ctx)


async def found(ctx: Context, **arguments: Any) -> list[str]:
    """The files by their names in the workspace, in no order."""
    try:
        result = await search(ctx, **arguments)
    except ProgramFailed:
        return []
    return sorted(line.removeprefix(f"{ctx.workspace.root}/") for line in result.output.split("\n"))


def put(workspace: Path, *names: str, text: str = "needle\n") -> None:
    for name in names:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)


async def test_it_answers_as_the_peer_was_recorded(case: dict[str, Any], ctx: Context, recorded: Path) -> None:
    arguments = {
        name: value.replace("{root}", str(recorded)) if isinstance(value, str) else value
        for name, value in case["arguments"].items()
    }
    if case["ok"]:
        result = await search(ctx, **arguments)
        assert result.output == case["output"].replace("{root}", str(recorded))
    else:
        with pytest.raises(CallError) as caught:
            await search(ctx, **arguments)
        assert caught.value.code == CODES[case["id"]]


async def test_nothing_found_is_told_as_ripgrep_does(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")

    with pytest.raises(ProgramFailed) as caught:
        await search(ctx, pattern="nowhere")

    facts = {"count": 0, "has_more": False, "left_out": 0}
    assert caught.value.result == Result(output="No matches found.", title="nowhere", metadata=facts)
    assert caught.value.as_dict() == {
        "code": "ExitCode:1",
        "message": "No matches found.",
        "retryable": False,
        "details": {"exit_code": 1},
    }


async def test_files_come_newest_first_and_those_of_one_moment_by_name(ctx: Context, workspace: Path) -> None:
    put(workspace, "old", "b/x", "a-b/x", "a/x", "new")
    for name, moment in {"old": 1, "b/x": 2, "a-b/x": 2, "a/x": 2, "new": 3}.items():
        os.utime(workspace / name, ns=(moment, moment))

    result = await search(ctx, pattern="needle")

    assert result.output.split("\n") == [f"{workspace}/{name}" for name in ("new", "a/x", "a-b/x", "b/x", "old")]
    assert result.metadata == {"count": 5, "has_more": False, "left_out": 0}


@pytest.mark.parametrize(("limit", "has_more"), [(2, True), (3, False), (4, False), (10**30, False)])
async def test_no_more_files_than_the_limit_are_named(
    ctx: Context, workspace: Path, limit: int, has_more: bool
) -> None:
    put(workspace, "a", "b", "c")

    result = await search(ctx, pattern="needle", limit=limit)

    shown = min(limit, 3)
    assert len(result.output.split("\n")) == shown
    assert result.metadata == {"count": shown, "has_more": has_more, "left_out": 0}


async def test_there_is_an_upper_limit(ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grep_files, "MAX_FILES", 2)
    put(workspace, "a", "b", "c")

    result = await search(ctx, pattern="needle", limit=1000)

    assert result.metadata == {"count": 2, "has_more": True, "left_out": 0}


async def test_too_many_to_be_read_are_found_again_in_order(
    ctx: Context, workspace: Path, toy: ToyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, *(f"f{number}" for number in range(60)))
    for number in range(60):
        os.utime(workspace / f"f{number}", ns=(number, number))
    plain = toy.search

    async def little(path: str, arguments: Any, **options: Any) -> Any:
        return await plain(path, arguments, **options | {"limit": 100})

    monkeypatch.setattr(toy, "search", little)

    result = await search(ctx, pattern="needle", limit=3)

    assert result.output.split("\n") == [f"{workspace}/f{number}" for number in (59, 58, 57)]
    assert result.metadata == {"count": 3, "has_more": True, "left_out": 0}


async def test_what_is_hidden_or_ignored_is_not_searched(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt", ".hidden/b.txt", ".c.txt", "build/d.txt", "e.log", "sub/build/f.txt", "sub/keep.log")
    put(workspace, ".gitignore", text="build/\n*.log\n")
    put(workspace, "sub/.gitignore", text="!keep.log\n")

    assert await found(ctx, pattern="needle") == ["a.txt", "sub/keep.log"]
    assert await found(ctx, pattern="needle", path="sub") == ["sub/keep.log"]


INCLUDED = {
    "*.py": ["a.py", "src/b.py", "src/deep/c.py"],
    "  *.py ": ["a.py", "src/b.py", "src/deep/c.py"],
    "*.{py,ts}": ["a.py", "src/b.py", "src/d.ts", "src/deep/c.py"],
    "src/*.py": ["src/b.py"],
    "src/**/*.py": ["src/b.py", "src/deep/c.py"],
    "/a.py": ["a.py"],
    "src/": ["src/b.py", "src/d.ts", "src/deep/c.py", "src/e:f.py.txt"],
    "[ab].py": ["a.py", "src/b.py"],
    "e:f*": ["src/e:f.py.txt"],
    "!*.py": ["-x.md", "src/d.ts", "src/e:f.py.txt"],
    "!src": ["-x.md", "a.py"],
    "-x.md": ["-x.md"],
    "": ["-x.md", "a.py", "src/b.py", "src/d.ts", "src/deep/c.py", "src/e:f.py.txt"],
    ".env": [".env"],
    ".*/*": [".dir/g.py"],
    "*.log": [],
    "nothing": [],
}


@pytest.mark.parametrize(("include", "expected"), INCLUDED.items(), ids=[*INCLUDED])
async def test_include_narrows_the_search_and_never_widens_it(
    ctx: Context, workspace: Path, include: str, expected: list[str]
) -> None:
    put(workspace, "a.py", "src/b.py", "src/deep/c.py", "src/d.ts", "src/e:f.py.txt", "-x.md", ".env", ".dir/g.py")
    put(workspace, "ignored.log", ".git/config")
    put(workspace, ".gitignore", text="*.log\n!*.ts\n")

    assert await found(ctx, pattern="needle", include=include) == expected


async def test_a_file_as_path_is_searched_alone_even_if_it_is_hidden_or_ignored(ctx: Context, workspace: Path) -> None:
    put(workspace, ".gitignore", text="a.log\n")
    put(workspace, "a.log", ".b", "c.txt")

    assert await found(ctx, pattern="needle", path="a.log") == ["a.log"]
    assert await found(ctx, pattern="needle", path=".b", include="*.txt") == [".b"]
    assert await found(ctx, pattern="nowhere", path="c.txt") == []


async def test_paths_are_shown_as_they_were_asked_for(ctx: Context, workspace: Path) -> None:
    put(workspace, "real/a.txt")
    (workspace / "link").symlink_to("real")
    (workspace / "one").symlink_to("real/a.txt")

    for path in ("link", "link/", f"{workspace}/link/", "./link"):
        assert (await search(ctx, pattern="needle", path=path)).output == f"{workspace}/link/a.txt"
    assert (await search(ctx, pattern="needle", path="one")).output == f"{workspace}/one"
    assert (await search(ctx, pattern="needle", path="")).output == f"{workspace}/real/a.txt"


async def test_files_that_rules_keep_from_the_call_are_left_out_and_counted(
    ctx: Context, workspace: Path, toy: ToyContext
) -> None:
    put(workspace, "sub/a.txt", "sub/key.pem", "sub/other.pem")
    toy.forbidden = {Need("read", "sub/key.pem"), Need("read", "sub/other.pem")}
    note = "[2 files left out: rules do not allow this call to read them]"

    result = await search(ctx, pattern="needle", path="sub")
    with pytest.raises(ProgramFailed) as caught:
        await search(ctx, pattern="needle", include="*.pem")

    assert result.output.split("\n") == [f"{workspace}/sub/a.txt", note]
    assert result.metadata == {"count": 1, "has_more": False, "left_out": 2}
    assert caught.value.result is not None
    assert caught.value.result.output == f"No matches found.\n{note}"


async def test_a_file_that_was_asked_for_by_its_name_was_allowed_already(
    ctx: Context, workspace: Path, toy: ToyContext
) -> None:
    put(workspace, "key.pem")
    toy.forbidden = {Need("read", "key.pem")}

    assert (await search(ctx, pattern="needle", path="key.pem")).output == f"{workspace}/key.pem"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": ""}, "The pattern is empty"),
        ({"pattern": " \n"}, "The pattern is empty"),
        ({"pattern": "a("}, "unclosed group"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"pattern": "a{999999999}"}, "size limit"),
        ({"pattern": "a\0b"}, "NUL"),
        ({"pattern": "\ud800"}, "surrogates"),
        ({"pattern": "x", "include": "{a"}, "`{a` is not a valid glob"),
        ({"pattern": "x", "include": "!\0"}, "NUL"),
        ({"pattern": "x", "include": "!" + "x" * 2000}, "longer than"),
    ],
)
async def test_what_cannot_be_searched_for_is_said(ctx: Context, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgs, match=message):
        await search(ctx, **arguments)


async def test_patterns_are_never_taken_for_options(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt", text="--files -e --pre=x\n")

    for pattern in ("--files", "-e", "--pre=x"):
        assert await found(ctx, pattern=pattern) == ["a.txt"]


async def test_a_path_that_leads_out_is_refused(ctx: Context, workspace: Path) -> None:
    (workspace / "out").symlink_to("/etc")

    for path in ("/etc", "..", "out", "out/passwd"):
        with pytest.raises(OutsideWorkspace):
            await search(ctx, pattern="root", path=path)


async def test_a_pipe_is_no_file_to_search(ctx: Context, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")

    with pytest.raises(FileFailed) as caught:
        await search(ctx, pattern="x", path="pipe")

    assert caught.value.code == "EINVAL"
    assert await found(ctx, pattern="x") == []


async def test_links_are_not_followed_and_a_name_with_a_line_break_stays_one_line(
    ctx: Context, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("needle\n")
    (workspace / "out.txt").symlink_to(tmp_path / "secret.txt")
    (workspace / "up").symlink_to(tmp_path)
    put(workspace, "a\nb.txt")

    assert (await search(ctx, pattern="needle")).output == f"{workspace}/a\\nb.txt"


def test_it_needs_to_read_what_it_searches(ctx: Context, workspace: Path) -> None:
    put(workspace, "sub/a.txt")
    (workspace / "link").symlink_to("sub")

    assert tool.needs(tool.parse({"pattern": "x"}), ctx.workspace) == [Need("read", ".")]
    assert tool.needs(tool.parse({"pattern": "x", "path": "link/"}), ctx.workspace) == [Need("read", "sub")]
