import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import FileFailed, InvalidArgs, OutsideWorkspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools.files.glob import tool
from tests.tools.conftest import ToyContext


async def search(ctx: Context, **arguments: Any) -> Result:
    async with asyncio.timeout(30):
        return await tool.run(tool.parse(arguments), ctx)


async def files(ctx: Context, **arguments: Any) -> list[str]:
    return (await search(ctx, **arguments)).output.split("\n")


def put(workspace: Path, *names: str) -> None:
    for name in names:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).touch()


TREE = ("a.py", "b.ts", "src/a.py", "src/a-b/c.py", "src/a/c.py", "src/x.tsx", ".env", "src/.env", ".github/ci.yml")
NAMED = {
    "*.py": ["a.py", "src/a/c.py", "src/a-b/c.py", "src/a.py"],
    "**/*.py": ["a.py", "src/a/c.py", "src/a-b/c.py", "src/a.py"],
    "./*.py": ["a.py"],
    "src/*.py": ["src/a.py"],
    "src/**": ["src/a/c.py", "src/a-b/c.py", "src/a.py", "src/x.tsx"],
    "**/a*/*": ["src/a/c.py", "src/a-b/c.py"],
    "*.{ts,tsx}": ["b.ts", "src/x.tsx"],
    "{src/a,.github}/*": [".github/ci.yml", "src/a/c.py"],
    "[ab].*": ["a.py", "b.ts", "src/a.py"],
    "?.py": ["a.py", "src/a/c.py", "src/a-b/c.py", "src/a.py"],
    ".env": [".env", "src/.env"],
    ".github/**": [".github/ci.yml"],
    "!*.py": ["b.ts", "src/x.tsx"],
    "*": ["a.py", "b.ts", "src/a/c.py", "src/a-b/c.py", "src/a.py", "src/x.tsx"],
    "nothing": ["No files found."],
    "--pre=x": ["No files found."],
}


@pytest.mark.parametrize(("pattern", "expected"), NAMED.items(), ids=[*NAMED])
async def test_files_are_named_in_order(ctx: Context, workspace: Path, pattern: str, expected: list[str]) -> None:
    put(workspace, *TREE)

    assert await files(ctx, pattern=pattern) == expected


async def test_paths_are_relative_to_the_workspace_and_patterns_to_the_folder(ctx: Context, workspace: Path) -> None:
    put(workspace, "sub/src/a.py", "src/a.py")
    (workspace / "link").symlink_to("sub")

    for path in ("sub", "sub/", "link", str(workspace / "sub")):
        assert await files(ctx, pattern="src/*.py", path=path) == ["sub/src/a.py"]
    assert await files(ctx, pattern="src/*.py", path="") == ["src/a.py"]
    assert await files(ctx, pattern=f"{workspace}/sub/src/*") == ["sub/src/a.py"]


async def test_what_git_ignores_is_left_out_even_if_it_is_named(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.log", "keep.log", "build/b.py", "c.py", ".git/config")
    (workspace / ".gitignore").write_text("*.log\n!keep.log\nbuild\n")

    assert await files(ctx, pattern="*.log") == ["keep.log"]
    assert await files(ctx, pattern="**/*.py") == ["c.py"]
    assert await files(ctx, pattern=".*") == [".gitignore"]
    assert await files(ctx, pattern=".git/*") == [".git/config"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (2, ["a", "b", "[the first 2 files, there are 3 in all; narrow the pattern, or raise the limit]"]),
        (3, ["a", "b", "c"]),
        (10**30, ["a", "b", "c"]),
    ],
)
async def test_no_more_files_than_the_limit_are_named_and_more_is_told_exactly(
    ctx: Context, workspace: Path, limit: int, expected: list[str]
) -> None:
    put(workspace, "a", "b", "c")

    result = await search(ctx, pattern="*", limit=limit)

    assert result.output.split("\n") == expected
    assert result.metadata == {"count": min(limit, 3), "has_more": limit < 3}


async def test_too_many_to_be_read_are_named_again_in_order(
    ctx: Context, workspace: Path, toy: ToyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(workspace, *(f"f{number:02}" for number in range(60)))
    plain = toy.search

    async def little(path: str, arguments: Any, **options: Any) -> Any:
        return await plain(path, arguments, **options | {"limit": 100})

    monkeypatch.setattr(toy, "search", little)

    note = "[the first 2 files, there are more than that; narrow the pattern, or raise the limit]"
    assert await files(ctx, pattern="*", limit=2) == ["f00", "f01", note]


async def test_names_are_told_whatever_rules_say_of_the_content(ctx: Context, workspace: Path, toy: ToyContext) -> None:
    put(workspace, "key.pem")
    toy.forbidden = {Need("read", "key.pem")}

    assert await files(ctx, pattern="*") == ["key.pem"]


async def test_links_are_not_followed_and_not_named(ctx: Context, workspace: Path, tmp_path: Path) -> None:
    put(workspace, "a\nb")
    (workspace / "link").symlink_to("a")
    (workspace / "up").symlink_to(tmp_path)

    assert await files(ctx, pattern="*") == ["a\\nb"]


async def test_a_file_is_no_folder_to_look_in(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")

    with pytest.raises(FileFailed, match=r"a\.txt is a file") as caught:
        await search(ctx, pattern="*", path="a.txt")

    assert caught.value.code == "ENOTDIR"


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("/etc/*", InvalidArgs),
        ("/*.py", InvalidArgs),
        ("../*", OutsideWorkspace),
        ("a/../../b", OutsideWorkspace),
        ("{a,..}/b", OutsideWorkspace),
        ("{a", InvalidArgs),
        ("", InvalidArgs),
        ("/", InvalidArgs),
    ],
)
async def test_a_pattern_that_leads_out_or_is_none_is_refused(
    ctx: Context, pattern: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await search(ctx, pattern=pattern)


def test_it_needs_to_read_the_folder(ctx: Context) -> None:
    assert tool.needs(tool.parse({"pattern": "*"}), ctx.workspace) == [Need("read", ".")]
    assert tool.needs(tool.parse({"pattern": "*", "path": "a"}), ctx.workspace) == [Need("read", "a")]
