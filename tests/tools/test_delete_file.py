"""delete_file: one file goes, in the state that was expected; a folder never does."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import FileFailed
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools.files.delete_file import tool


async def delete(ctx: Context, path: str, **more: Any) -> Result:
    args = tool.parse({"path": path} | more)
    assert tool.needs(args, ctx.workspace) == [Need("edit", path)]
    return await tool.run(args, ctx)


async def test_the_facts_tell_what_went(ctx: Context, workspace: Path) -> None:
    (workspace / "a").write_text("one\ntwo\n")

    result = await delete(ctx, "a")

    assert (result.output, (workspace / "a").exists()) == ("Deleted a.", False)
    assert result.metadata == {
        "path": "a",
        "diff": "--- a/a\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n",
        "additions": 0,
        "deletions": 2,
        "files": [{"path": "a", "kind": "deleted", "additions": 0, "deletions": 2}],
    }


async def test_what_is_no_text_goes_without_a_diff(ctx: Context, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"\0\xff")

    result = await delete(ctx, "a")

    assert (result.metadata["diff"], result.metadata["files"][0]["kind"]) == ("", "deleted")
    assert not (workspace / "a").exists()


@pytest.mark.parametrize(
    ("path", "more", "code"),
    [
        ("missing", {}, "ENOENT"),
        ("missing", {"if_match": ["*"]}, "ESTALE"),
        ("file", {"if_match": []}, "ESTALE"),
        ("file", {"if_match": ["other"]}, "ESTALE"),
        ("folder", {}, "EISDIR"),
    ],
)
async def test_what_cannot_go_stays(ctx: Context, workspace: Path, path: str, more: dict[str, Any], code: str) -> None:
    (workspace / "folder").mkdir()
    (workspace / "file").touch()

    with pytest.raises(FileFailed) as caught:
        await delete(ctx, path, **more)

    assert caught.value.code == code
    assert sorted(os.listdir(workspace)) == ["file", "folder"]
