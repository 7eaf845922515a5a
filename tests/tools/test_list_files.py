"""list_files: a folder as data, in the order of its paths, from any place on."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import CallError
from app.core.tools import Context
from app.tools.files.list_files import tool

NAMES = st.sampled_from(["a", "b", "a-b", "a.b", "é", "%41", "z z"])
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=12)


async def listed(ctx: Context, **given: Any) -> tuple[list[str], str | None]:
    result = await tool.run(tool.parse(given), ctx)
    return [entry["path"] for entry in result.structured["entries"]], result.structured["next"]


def grow(root: Path, paths: list[str]) -> None:
    """Files where there is nothing, and folders where something is below."""
    for path in sorted(paths, key=len, reverse=True):
        if not (root / path).exists() and not any(folder.is_file() for folder in (root / path).parents):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()


def tree(root: Path, depth: int) -> list[str]:
    whole = [file.relative_to(root) for file in root.rglob("*")]
    whole.sort(key=lambda path: [part.encode() for part in path.parts])
    return [f"{root.name}/{path}" for path in whole if len(path.parts) <= depth]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=PATHS, depth=st.integers(1, 3), limit=st.integers(1, 5))
async def test_the_pages_together_are_the_tree_in_its_order(
    ctx: Context, workspace: Path, paths: list[str], depth: int, limit: int
) -> None:
    root = Path(tempfile.mkdtemp(dir=workspace))
    grow(root, paths)
    expected = tree(root, depth)

    found: list[str] = []
    after = None
    while True:
        page, after = await listed(ctx, path=root.name, depth=depth, limit=limit, after=after)
        found += page
        if after is None:
            break
        assert len(page) == limit

    assert found == expected


async def test_a_place_that_is_gone_is_still_a_place_to_go_on_from(ctx: Context, workspace: Path) -> None:
    grow(workspace, ["a", "b/x", "c"])

    assert await listed(ctx, depth=2, after="b/w") == (["b/x", "c"], None)
    assert await listed(ctx, depth=2, after="b/x/deep") == (["c"], None)
    assert await listed(ctx, depth=2, after="bb") == (["c"], None)
    assert await listed(ctx, depth=2, after="zzz") == ([], None)


async def test_what_cannot_be_opened_is_listed_without_its_facts(ctx: Context, workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc/passwd")
    (workspace / "folder").mkdir()

    result = await tool.run(tool.parse({}), ctx)

    bare = {"size": None, "modified": None, "etag": None}
    assert result.structured == {
        "entries": [{"path": "folder", "type": "directory"} | bare, {"path": "link", "type": "symlink"} | bare],
        "next": None,
    }


@pytest.mark.parametrize(("path", "code"), [("file", "ENOTDIR"), ("missing", "ENOENT"), ("..", "OutsideWorkspace")])
async def test_only_folders_are_listed(ctx: Context, workspace: Path, path: str, code: str) -> None:
    (workspace / "file").touch()

    with pytest.raises(CallError) as caught:
        await listed(ctx, path=path)
    assert caught.value.code == code
