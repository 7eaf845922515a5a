import asyncio
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import BinaryFile, CallError, FileFailed, InvalidArgs, OutsideWorkspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools import read_file
from app.tools.read_file import tool

# The peer dumps binary files; ours are refused.
REFUSED_ON_PURPOSE = {"read_file-010": "BinaryFile"}
CODES = {"read_file-019": "InvalidArgs"} | REFUSED_ON_PURPOSE


async def read(ctx: Context, path: str, **more: Any) -> Result:
    async with asyncio.timeout(5):
        return await tool.run(tool.parse({"file_path": path, **more}), ctx)


async def test_it_answers_as_the_peer_was_recorded(case: dict[str, Any], ctx: Context, recorded: Path) -> None:
    arguments = dict(case["arguments"])
    path = arguments.pop("file_path").replace("{root}", str(recorded))
    if case["ok"] and case["id"] not in REFUSED_ON_PURPOSE:
        assert (await read(ctx, path, **arguments)).output == case["output"]
        return
    with pytest.raises(CallError) as caught:
        await read(ctx, path, **arguments)
    assert caught.value.code == CODES[case["id"]]


async def test_a_relative_path_starts_at_the_workspace(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d/a.txt").write_text("one\ntwo\n")

    assert await read(ctx, "d/a.txt") == Result(
        output="L1: one\nL2: two",
        title="d/a.txt",
        metadata={"lines": 2, "has_more": False, "next_offset": None},
    )


async def test_the_next_offset_tells_where_to_go_on(ctx: Context, recorded: Path) -> None:
    first = await read(ctx, "many.txt")
    second = await read(ctx, "many.txt", offset=first.metadata["next_offset"])

    assert first.metadata == {"lines": 2000, "has_more": True, "next_offset": 2001}
    assert second.output.split("\n")[0] == "L2001: 2001"
    assert second.metadata == {"lines": 500, "has_more": False, "next_offset": None}


async def test_a_limit_that_ends_with_the_file_leaves_nothing(ctx: Context, recorded: Path) -> None:
    result = await read(ctx, "many.txt", offset=2401, limit=100)

    assert result.metadata["has_more"] is False


async def test_long_lines_are_cut_to_500_bytes_at_a_whole_character(ctx: Context, workspace: Path) -> None:
    lines = ["a" * 600, "é" * 300, "a" + "é" * 300, "x" * 500, "short"]
    (workspace / "long.txt").write_text("\n".join(lines))

    result = await read(ctx, "long.txt")

    shown = ["a" * 500, "é" * 250, "a" + "é" * 249, "x" * 500, "short"]
    assert result.output == "\n".join(f"L{number}: {text}" for number, text in enumerate(shown, 1))


@pytest.mark.parametrize("size", range(505, 520))
async def test_a_long_line_ends_where_it_ends(ctx: Context, workspace: Path, size: int) -> None:
    (workspace / "long.txt").write_bytes(b"a" * size + b"\r\nnext\r\n")

    assert (await read(ctx, "long.txt")).output == f"L1: {'a' * 500}\nL2: next"


async def test_the_cut_is_made_after_bad_bytes_are_replaced(ctx: Context, workspace: Path) -> None:
    (workspace / "bad.txt").write_bytes(b"\xff" * 600)

    assert (await read(ctx, "bad.txt")).output == "L1: " + "\ufffd" * 166


async def test_bytes_that_are_not_utf8_are_replaced(ctx: Context, recorded: Path) -> None:
    assert (await read(ctx, "latin1.txt")).output == "L1: caf\ufffd\nL2: ok"


async def test_only_the_return_before_a_line_feed_is_dropped(ctx: Context, workspace: Path) -> None:
    (workspace / "returns.txt").write_bytes(b"a\rb\r\r\n\r\nlast\r")

    assert (await read(ctx, "returns.txt")).output == "L1: a\rb\r\nL2: \nL3: last\r"


@pytest.mark.parametrize(("content", "count"), [("", "0 lines"), ("x", "1 line"), ("x\ny\n", "2 lines")])
async def test_an_offset_past_the_end_says_how_many_lines_there_are(
    ctx: Context, workspace: Path, content: str, count: str
) -> None:
    (workspace / "a.txt").write_text(content)

    with pytest.raises(InvalidArgs, match=f"a.txt has {count}"):
        await read(ctx, "a.txt", offset=max(1, content.count("\n") + 1 if content != "x" else 2))


async def test_huge_numbers_are_only_numbers(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n")

    assert (await read(ctx, "a.txt", limit=2**64 - 1)).output == "L1: x"
    with pytest.raises(InvalidArgs, match="has 1 line"):
        await read(ctx, "a.txt", offset=10**30)


async def test_a_giant_line_takes_no_memory(ctx: Context, workspace: Path) -> None:
    with (workspace / "giant.txt").open("wb") as file:
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.write(b"\nlast")

    tracemalloc.start()
    try:
        result = await read(ctx, "giant.txt")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert result.output == f"L1: {'x' * 500}\nL2: last"
    assert peak < 4 * 2**20


async def test_an_answer_has_an_end_even_when_the_limit_has_none(
    ctx: Context, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "MOST_OUTPUT", 100)

    result = await read(ctx, "many.txt", limit=10**30)

    assert len(result.output) < 200
    assert result.metadata["next_offset"] == result.metadata["lines"] + 1


@pytest.mark.parametrize("place", [0, 8191])
async def test_a_file_with_a_nul_byte_near_its_start_is_binary(ctx: Context, workspace: Path, place: int) -> None:
    (workspace / "a.bin").write_bytes(b"x" * place + b"\0rest")

    with pytest.raises(BinaryFile, match=r"a\.bin is a binary file"):
        await read(ctx, "a.bin")


async def test_a_missing_file_is_answered_with_its_nearest_neighbours(ctx: Context, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src/mainn").mkdir()
    for name in ("Main.py", "main.ts", "maim.py", "mein.py", "other.md", "main\n.py"):
        (workspace / "src" / name).touch()

    with pytest.raises(FileFailed) as caught:
        await read(ctx, "src/main.py")

    assert caught.value.code == "ENOENT"
    assert caught.value.message.startswith("src/main.py does not exist. Did you mean src/Main.py or src/m")
    assert caught.value.message.count(" or ") == 2


@pytest.mark.parametrize("path", ["zzz.txt", "no/such/folder.txt"])
async def test_a_missing_file_without_neighbours_is_just_missing(ctx: Context, workspace: Path, path: str) -> None:
    (workspace / "readme.md").touch()

    with pytest.raises(FileFailed) as caught:
        await read(ctx, path)

    assert (caught.value.code, caught.value.message) == ("ENOENT", f"{path} does not exist.")


async def test_a_folder_is_sent_to_list_dir(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()

    with pytest.raises(FileFailed, match="d is a directory; use list_dir") as caught:
        await read(ctx, "d")

    assert caught.value.code == "EISDIR"


async def test_a_pipe_without_a_writer_is_answered_at_once(ctx: Context, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")

    with pytest.raises(FileFailed, match="pipe is a pipe") as caught:
        await read(ctx, "pipe")

    assert caught.value.code == "EINVAL"


async def test_a_path_out_of_the_workspace_is_refused(ctx: Context) -> None:
    with pytest.raises(OutsideWorkspace):
        await read(ctx, "/etc/passwd")


def test_it_needs_to_read_the_file_by_its_canonical_name(ctx: Context, workspace: Path) -> None:
    (workspace / "real.txt").touch()
    (workspace / "link.txt").symlink_to("real.txt")

    assert tool.needs(tool.parse({"file_path": "link.txt"}), ctx.workspace) == [Need("read", "real.txt")]


async def test_the_file_that_was_approved_is_the_one_that_is_read(ctx: Context, workspace: Path) -> None:
    (workspace / "public.txt").write_text("public")
    (workspace / "private.txt").write_text("private")
    (workspace / "link.txt").symlink_to("public.txt")
    approved = replace(ctx, approved=frozenset({"public.txt"}))

    before = await read(approved, "link.txt")
    (workspace / "link.txt").unlink()
    (workspace / "link.txt").symlink_to("private.txt")

    assert before.output == "L1: public"
    with pytest.raises(FileFailed, match=r"link\.txt changed after it was checked; try again") as caught:
        await read(approved, "link.txt")
    assert caught.value.code == "ESTALE"


async def test_a_canceled_call_stops_reading(ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file here never ends; only the cancellation can end the thread."""
    (workspace / "a.txt").write_text("x")
    loop, reading, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    class Endless:
        def readline(self, size: int) -> bytes:
            loop.call_soon_threadsafe(reading.set)
            return b"x"

    def read_on(args: Any, ctx: Any, stop: Any) -> Result:
        list(read_file._lines(Endless(), stop))  # type: ignore[arg-type]
        loop.call_soon_threadsafe(ended.set)
        return Result()

    monkeypatch.setattr(read_file, "_read", read_on)
    call = asyncio.create_task(read(ctx, "a.txt"))
    async with asyncio.timeout(5):
        await reading.wait()
        call.cancel()
        await ended.wait()

    assert call.cancelled()
