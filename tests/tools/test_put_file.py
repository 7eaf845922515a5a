"""put_file: an upload becomes a file, whole and only in the state that was expected."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, FileFailed, InvalidArgs
from app.core.ports import Stamp
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools.files.put_file import tool
from tests.tools.conftest import ToyContext

ID = "0" * 32


async def put(ctx: Context, toy: ToyContext, path: str, content: bytes, **more: Any) -> Result:
    toy.uploads[ID] = content
    given = {"upload": ID, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    args = tool.parse({"path": path} | given | more)
    ctx.approved = frozenset(need.pattern for need in tool.needs(args, ctx.workspace))
    return await tool.run(args, ctx)


async def test_it_needs_to_edit_the_file_that_is_meant(ctx: Context, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    args = tool.parse({"path": "link/a", "upload": ID, "size": 0, "sha256": "0" * 64})

    assert tool.needs(args, ctx.workspace) == [Need("edit", "real/a")]


async def test_the_facts_tell_what_changed(ctx: Context, toy: ToyContext, workspace: Path) -> None:
    added = await put(ctx, toy, "new/a.txt", b"one\n")
    written = Stamp.of((workspace / "new/a.txt").stat())
    changed = await put(ctx, toy, "new/a.txt", b"two\n")

    assert added.output == "Created new/a.txt, 4 bytes."
    assert {name: added.metadata[name] for name in ("path", "size", "etag", "created")} == {
        "path": "new/a.txt",
        "size": 4,
        "etag": written.etag,
        "created": True,
    }
    assert added.metadata["files"] == [{"path": "new/a.txt", "kind": "added", "additions": 1, "deletions": 0}]
    assert changed.metadata["files"] == [{"path": "new/a.txt", "kind": "modified", "additions": 1, "deletions": 1}]
    assert changed.metadata["diff"].endswith("-one\n+two\n")
    assert (workspace / "new/a.txt").read_bytes() == b"two\n"


@pytest.mark.parametrize(("old", "new"), [(b"\0", b"text"), (b"text", b"\0"), (b"x" * 300_000, b"y"), (b"y", b"\xff")])
async def test_what_is_no_text_or_large_has_no_diff(
    ctx: Context, toy: ToyContext, workspace: Path, old: bytes, new: bytes
) -> None:
    (workspace / "a").write_bytes(old)

    result = await put(ctx, toy, "a", new)

    facts = {name: result.metadata[name] for name in ("diff", "additions", "deletions", "files")}
    file = {"path": "a", "kind": "modified", "additions": 0, "deletions": 0}
    assert facts == {"diff": "", "additions": 0, "deletions": 0, "files": [file]}
    assert (workspace / "a").read_bytes() == new


async def test_the_mode_of_a_file_stays(ctx: Context, toy: ToyContext, workspace: Path) -> None:
    (workspace / "run.sh").write_text("old")
    (workspace / "run.sh").chmod(0o751)

    await put(ctx, toy, "run.sh", b"new")

    assert (workspace / "run.sh").stat().st_mode & 0o777 == 0o751


async def test_an_upload_that_is_not_what_was_sent_is_not_written(
    ctx: Context, toy: ToyContext, workspace: Path
) -> None:
    with pytest.raises(FileFailed) as caught:
        await put(ctx, toy, "a", b"content", sha256="0" * 64)

    assert caught.value.code == "EIO"
    assert os.listdir(workspace) == []


async def test_a_link_that_was_turned_after_the_yes_is_not_written_through(
    ctx: Context, toy: ToyContext, workspace: Path
) -> None:
    (workspace / "allowed").mkdir()
    (workspace / "secret").mkdir()
    (workspace / "link").symlink_to("allowed")
    args = tool.parse({"path": "link/a", "upload": ID, "size": 1, "sha256": hashlib.sha256(b"x").hexdigest()})
    ctx.approved = frozenset(need.pattern for need in tool.needs(args, ctx.workspace))
    toy.uploads[ID] = b"x"
    (workspace / "link").unlink()
    (workspace / "link").symlink_to("secret")

    with pytest.raises(CallError) as caught:
        await tool.run(args, ctx)

    assert caught.value.code == "ESTALE"
    assert os.listdir(workspace / "secret") == []


@pytest.mark.parametrize(
    "given", [{"upload": "../../x"}, {"upload": "0" * 31}, {"sha256": "x"}, {"size": -1}, {"if_match": "x"}]
)
def test_what_cannot_be_an_upload_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgs):
        tool.parse({"path": "a", "upload": ID, "size": 0, "sha256": "0" * 64} | given)
