import asyncio
import os
import tracemalloc
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.core.errors import BinaryFile, CallError, FileFailed, InvalidArgs, OutsideWorkspace, TooLarge
from app.core.results import Result, attach
from app.core.rules import Need
from app.core.tools import Context
from app.dispatch.tools.registry import Registry
from app.text import file_lines
from app.tools.files import list_dir, read_file
from app.tools.files.read_file import tool
from tests.tools.conftest import ToyContext

# The peer dumps binary files; ours are refused.
REFUSED_ON_PURPOSE = {"read_file-010": "BinaryFile"}
CODES = {"read_file-019": "InvalidArgs", "read_file-020": "InvalidArgs"} | REFUSED_ON_PURPOSE


async def read(ctx: Context, path: str, **more: Any) -> Result:
    async with asyncio.timeout(20):
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


async def test_a_long_line_ends_where_it_ends(ctx: Context, workspace: Path) -> None:
    for size in range(505, 520):
        (workspace / "long.txt").write_bytes(b"a" * size + b"\r\nnext\r\n")

        assert (await read(ctx, "long.txt")).output == f"L1: {'a' * 500}\nL2: next", size


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
    monkeypatch.setattr(read_file, "MAX_OUTPUT", 100)

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
    for name in ("Main.py", "main.ts", "maim.py", "mein.py", "other.md", "main\n.py"):
        (workspace / "src" / name).touch()

    with pytest.raises(FileFailed) as caught:
        await read(ctx, "src/main.py")

    assert caught.value.code == "ENOENT"
    assert caught.value.message.startswith("src/main.py does not exist. Did you mean src/Main.py or src/m")
    assert caught.value.message.count(" or ") == 2


async def test_what_may_not_be_read_is_not_suggested(ctx: Context, toy: ToyContext, workspace: Path) -> None:
    for name in ("key.pem", "keys.pem"):
        (workspace / name).touch()
    toy.forbidden = {Need("read", "keys.pem")}

    with pytest.raises(FileFailed) as caught:
        await read(ctx, "kay.pem")

    assert caught.value.message == "kay.pem does not exist. Did you mean key.pem?"


async def test_a_missing_folder_is_answered_with_the_file_in_the_right_one(ctx: Context, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src/main.py").touch()

    with pytest.raises(FileFailed, match=r"^scr/main\.py does not exist\. Did you mean src/main\.py\?$"):
        await read(ctx, "scr/main.py")


@pytest.mark.parametrize("path", ["zzz.txt", "no/such/folder.txt"])
async def test_a_missing_file_without_neighbours_is_just_missing(ctx: Context, workspace: Path, path: str) -> None:
    (workspace / "readme.md").touch()

    with pytest.raises(FileFailed) as caught:
        await read(ctx, path)

    assert (caught.value.code, caught.value.message) == ("ENOENT", f"{path} does not exist.")


@pytest.mark.parametrize("more", [{}, {"offset": 3, "limit": 2}, {"limit": 100}])
async def test_a_folder_is_answered_as_list_dir_does(ctx: Context, recorded: Path, more: dict[str, int]) -> None:
    listed = await list_dir.tool.run(list_dir.tool.parse({"dir_path": "tree", **more}), ctx)

    assert await read(ctx, "tree", **more) == listed


async def test_a_folder_that_is_not_the_approved_one_is_not_listed(ctx: Context, workspace: Path) -> None:
    (workspace / "a").mkdir()

    with pytest.raises(FileFailed) as caught:
        await read(replace(ctx, approved=frozenset({"b"})), "a")

    assert caught.value.code == "ESTALE"


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
        list(file_lines.read_lines(Endless(), stop))  # type: ignore[arg-type]
        loop.call_soon_threadsafe(ended.set)
        return Result()

    monkeypatch.setattr(read_file, "_read", read_on)
    call = asyncio.create_task(read(ctx, "a.txt"))
    async with asyncio.timeout(20):
        await reading.wait()
        call.cancel()
        await ended.wait()

    assert call.cancelled()


async def test_a_far_slice_is_read_without_the_lines_before_it(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "long.txt").write_bytes(b"".join(b"%d\n" % number for number in range(1, 200_001)))
    given, lines_of = list[bytes](), file_lines.read_lines

    def tell(file: Any, stop: Any) -> Any:
        for line in lines_of(file, stop):
            given.append(line)
            yield line

    monkeypatch.setattr(file_lines, "read_lines", tell)
    tracemalloc.start()
    try:
        result = await read(ctx, "long.txt", offset=199_991, limit=9)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert result.output == "\n".join(f"L{number}: {number}" for number in range(199_991, 200_000))
    assert result.metadata == {"lines": 9, "has_more": True, "next_offset": 200_000}
    assert len(given) == 10
    assert peak < 4 * 2**20


async def test_a_block_says_whether_there_was_more(ctx: Context, recorded: Path) -> None:
    whole = await read(ctx, "sample.py", mode="indentation", indentation={"anchor_line": 20, "max_levels": 1})
    part = await read(
        ctx, "sample.py", mode="indentation", indentation={"anchor_line": 20, "max_levels": 1, "max_lines": 2}
    )

    lines = [f"L19:{' ' * 13}for i in range(x):", f"L20:{' ' * 17}print(i)", f"L21:{' ' * 17}yield i"]
    assert whole.output == "\n".join(lines)
    assert whole.metadata == {"lines": 3, "has_more": False, "next_offset": None}
    assert part.output == "\n".join(lines[:2])
    assert part.metadata == {"lines": 2, "has_more": True, "next_offset": None}


async def test_a_block_that_is_too_long_is_cut_and_says_where_to_go_on(
    ctx: Context, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "MAX_OUTPUT", 40)

    result = await read(ctx, "many.txt", mode="indentation", offset=10, indentation={"include_siblings": True})

    assert result.output == (
        "L7: 7\nL8: 8\nL9: 9\nL10: 10\nL11: 11\nL12: 12\n"
        "[cut here because it is long; go on with mode slice and offset 13]"
    )


async def test_an_anchor_past_the_end_says_how_many_lines_there_are(ctx: Context, recorded: Path) -> None:
    with pytest.raises(InvalidArgs, match=r"anchor_line 3 is past the end: nonl\.txt has 2 lines"):
        await read(ctx, "nonl.txt", mode="indentation", offset=3)


async def test_a_file_is_too_large_for_blocks_before_it_is_for_slices(
    ctx: Context, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "MAX_INDENTED_BYTES", 100)

    assert (await read(ctx, "many.txt", limit=1)).output == "L1: 1"
    with pytest.raises(TooLarge, match=r"many\.txt has more than 100 bytes"):
        await read(ctx, "many.txt", mode="indentation")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"offset": 0}, "offset"),
        ({"offset": -1}, "offset"),
        ({"offset": 1.5}, "offset"),
        ({"limit": 0}, "limit"),
        ({"mode": "lines"}, "mode"),
        ({"indentation": {"anchor_line": 0}}, "indentation.anchor_line"),
        ({"indentation": {"max_levels": -1}}, "indentation.max_levels"),
        ({"indentation": {"max_lines": 0}}, "indentation.max_lines"),
        ({"indentation": {"around": 3}}, "indentation.around"),
    ],
)
def test_a_mistake_is_named_by_its_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgs) as caught:
        tool.parse({"file_path": "a", **arguments})

    assert caught.value.details == {"fields": [field]}


@pytest.mark.parametrize("number", [5, 5.0, "5"])
def test_numbers_may_come_as_text_or_with_a_point(number: object) -> None:
    args = tool.parse({"file_path": "a", "offset": number, "limit": number, "indentation": {"anchor_line": number}})

    assert (args.offset, args.limit, args.indentation.anchor_line) == (5, 5, 5)


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp"])
async def test_an_image_is_attached_whatever_its_name_says(ctx: Context, workspace: Path, kind: str) -> None:
    data = picture((40, 30), kind)
    (workspace / "a.txt").write_bytes(data)

    assert await read(ctx, "a.txt") == Result(
        output="Image read successfully",
        title="a.txt",
        metadata={
            **{"mime": f"image/{kind}", "size": len(data), "width": 40, "height": 30},
            **{"original_width": 40, "original_height": 30, "scaled": False, "rotated": False},
        },
        attachments=(attach(data, f"image/{kind}", "a.txt"),),
    )


async def test_a_large_image_is_scaled_down(ctx: Context, workspace: Path) -> None:
    (workspace / "a.png").write_bytes(picture((4096, 10), "png"))

    result = await read(ctx, "a.png")

    assert (result.metadata["width"], result.metadata["height"], result.metadata["scaled"]) == (2048, 5, True)


async def test_a_broken_image_is_not_attached(ctx: Context, workspace: Path) -> None:
    (workspace / "a.png").write_bytes(picture((40, 30), "png")[:50])

    with pytest.raises(FileFailed, match=r"a\.png begins like image/png, but is broken") as caught:
        await read(ctx, "a.png")

    assert caught.value.code == "EINVAL"


async def test_a_pdf_is_attached(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d/a.pdf").write_bytes(b"%PDF-1.7\n\0rest")

    assert await read(ctx, "d/a.pdf") == Result(
        output="PDF read successfully",
        title="d/a.pdf",
        metadata={"mime": "application/pdf", "size": 14},
        attachments=(attach(b"%PDF-1.7\n\0rest", "application/pdf", "a.pdf"),),
    )


@pytest.mark.parametrize("size", [99, 100, 101])
async def test_a_pdf_has_a_largest_size(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(read_file, "MAX_PDF_BYTES", 100)
    (workspace / "a.pdf").write_bytes(b"%PDF-".ljust(size))

    if size <= 100:
        assert (await read(ctx, "a.pdf")).metadata["size"] == size
        return
    with pytest.raises(TooLarge, match=r"a\.pdf has more than 100 bytes"):
        await read(ctx, "a.pdf")


@pytest.mark.parametrize(
    ("data", "is_text"),
    [
        (b"\x1b[31mred\x1b[0m\n" * 9, True),
        ("日本語\n".encode() * 9, True),
        (b"caf\xe9 \xa4\xbd\xb8\xb4 \xa6\n" * 9, True),
        (b"\x01\x02\x03\x04plain text", True),
        (b"\x01\x02\x03\x04text", False),
        ("text".encode("utf-16"), False),
    ],
)
async def test_what_hardly_has_letters_is_binary(ctx: Context, workspace: Path, data: bytes, is_text: bool) -> None:
    (workspace / "a").write_bytes(data)

    if is_text:
        assert (await read(ctx, "a")).output.startswith("L1: ")
        return
    with pytest.raises(BinaryFile):
        await read(ctx, "a")


async def test_utf16_is_told_from_other_binary_files(ctx: Context, workspace: Path) -> None:
    (workspace / "a").write_bytes("text".encode("utf-16"))

    with pytest.raises(BinaryFile, match="a is UTF-16, which this tool does not read; convert it to UTF-8 first"):
        await read(ctx, "a")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"filePath": "a.txt"}, {"file_path": "a.txt"}),
        ({"filePath": "a.txt", "offset": 7, "limit": 3}, {"file_path": "a.txt", "offset": 7, "limit": 3}),
        ({"filePath": "a.txt", "offset": 0}, {"file_path": "a.txt", "offset": 1}),
        ({"file_path": "a.txt", "mode": "slice"}, {"file_path": "a.txt", "mode": "slice"}),
    ],
)
def test_read_is_the_same_tool_by_another_name(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert aliased("read", given) == tool.parse(meant)


@pytest.mark.parametrize(
    "given",
    [None, [], "a.txt", {}, {"filePath": 1}, {"filePath": "a", "path": "b"}, {"filePath": "a", "file_path": "b"}],
)
def test_what_read_cannot_take_is_a_plain_mistake(given: Any) -> None:
    with pytest.raises(InvalidArgs, match="read_file cannot take these arguments"):
        aliased("read", given)


def aliased(name: str, raw: Any) -> Any:
    found = Registry([tool]).get(name, None)
    assert found is not None
    return found.parse(raw)


def picture(size: tuple[int, int], kind: str) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, "red").save(file, kind)
    return file.getvalue()
