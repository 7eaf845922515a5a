"""read_file: the lines of a text file, numbered; images and PDF as they are; folders as a list."""

import errno
import os
from threading import Event
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, Field

from app.core.errors import BinaryFile, FileFailed, InvalidArgs, TooLarge
from app.core.files import touching
from app.core.ports import PathScope
from app.core.results import Result, Truncation, attach
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.text import file_lines, images
from app.text.file_lines import Line, Shape
from app.text.file_text import MARKS
from app.tools.files import list_dir, view_image

SNIFFED_BYTES = 8192
MOST_STRANGE = 0.3
MOST_PDF = 20 * 1024 * 1024
MOST_INDENTED = 64 * 1024 * 1024
# Cut at a whole line here, because what the line would cut off could not be asked for by its number.
MOST_OUTPUT = Truncation().limit - 1000
_STRANGE = bytes(byte for byte in range(32) if byte not in b"\a\b\t\n\v\f\r\x1b")


class Indentation(BaseModel, extra="forbid"):
    """Which block of lines belongs to a line."""

    anchor_line: int | None = Field(default=None, ge=1, description="The line to start from; offset when left out.")
    max_levels: int = Field(
        default=0, ge=0, description="How many levels of indentation around the anchor to include; 0 is all of them."
    )
    include_siblings: bool = Field(
        default=False, description="Whether other blocks that are indented like the outermost level are included."
    )
    include_header: bool = Field(default=True, description="Whether comments directly above the block are included.")
    max_lines: int | None = Field(default=None, ge=1, description="Most lines to return, if less than limit.")


class Args(BaseModel, extra="forbid"):
    file_path: str = Field(description="File to read: relative to the workspace, or absolute and inside it.")
    offset: int = Field(default=1, ge=1, description="Number of the first line to read; the first line is 1.")
    limit: int = Field(default=2000, ge=1, description="Most lines to return.")
    mode: Literal["slice", "indentation"] = Field(
        default="slice",
        description="`slice` reads limit lines from offset on; `indentation` the block of code around a line.",
    )
    indentation: Indentation = Field(default=Indentation(), description="What the mode `indentation` reads.")


def needs(args: Args, scope: PathScope) -> list[Need]:
    return touching(scope, "read", [args.file_path])


async def run(args: Args, ctx: Context) -> Result:
    return await list_dir.advising(args.file_path, ctx, ctx.in_thread(lambda stop: _read(args, ctx, stop)))


def adapt_read(raw: Any) -> Any:
    """There, a first line of 0 is the first line too."""
    if not isinstance(raw, dict) or "file_path" in raw:
        return raw
    arguments = {"file_path" if name == "filePath" else name: value for name, value in raw.items()}
    return arguments | {"offset": 1} if arguments.get("offset") in (0, "0") else arguments


tool = typed(
    Args,
    name="read_file",
    description=(
        "Read a text file. Answers its lines as `L{number}: {text}`; lines longer than 500 bytes are cut."
        " Use offset and limit to read a long file in slices, or the mode `indentation` for the code around a line."
        " Images (PNG, JPEG, GIF, WebP) and PDF files are attached; a folder is listed."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
    aliases=(Alias("read", adapt_read),),
)


def _read(args: Args, ctx: Context, stop: Event) -> Result:
    try:
        file = ctx.workspace.open(args.file_path, approved=ctx.approved)
    except FileFailed as error:
        if error.code != "EISDIR":
            raise
        return list_dir.listing(_folder(args), ctx, stop)
    with file:
        try:
            return _content(args, file, stop)
        except OSError as error:
            raise FileFailed(error.errno or errno.EIO, args.file_path) from None


def _folder(args: Args) -> list_dir.Args:
    """What was asked of a folder, as list_dir takes it."""
    given = args.model_dump(include={"offset", "limit"}, exclude_unset=True)
    return list_dir.Args(dir_path=args.file_path, **given)


def _content(args: Args, file: BinaryIO, stop: Event) -> Result:
    head = file.read(SNIFFED_BYTES)
    file.seek(0)
    if images.kind_of(head):
        return _image(args, file)
    if head.startswith(b"%PDF-"):
        return _pdf(args, file)
    _require_text(head, args.file_path)
    return _block(args, file) if args.mode == "indentation" else _slice(args, file, stop)


def _slice(args: Args, file: BinaryIO, stop: Event) -> Result:
    seen = file_lines.skip(file, args.offset - 1, stop)
    shown, size, has_more = list[str](), 0, False
    for seen, line in enumerate(file_lines.lines_of(file, stop), args.offset):
        if has_more := len(shown) == args.limit or size > MOST_OUTPUT:
            break
        shown.append(f"L{seen}: {file_lines.shown(line)}")
        size += len(shown[-1]) + 1
    if not shown:
        raise InvalidArgs(f"offset {args.offset} is past the end: {args.file_path} has {_count(seen)}.")
    facts = {"lines": len(shown), "has_more": has_more, "next_offset": seen if has_more else None}
    if has_more and len(shown) < args.limit:
        shown.append(f"[cut here because it is long; go on with offset {seen}]")
    return Result(output="\n".join(shown), title=args.file_path, metadata=facts)


def _block(args: Args, file: BinaryIO) -> Result:
    asked, data = args.indentation, _whole(file, args.file_path, MOST_INDENTED)
    anchor = asked.anchor_line or args.offset
    shape = Shape(levels=asked.max_levels, siblings=asked.include_siblings, header=asked.include_header)
    limit = min(args.limit, asked.max_lines or args.limit)
    block = file_lines.block(data, anchor, shape, limit=limit, room=MOST_OUTPUT)
    if block is None:
        lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        raise InvalidArgs(f"anchor_line {anchor} is past the end: {args.file_path} has {_count(lines)}.")
    shown = [f"L{line.number}: {file_lines.shown(_bytes(data, line))}" for line in block.lines]
    if block.is_long:
        after = block.lines[-1].number + 1 if block.lines else anchor
        shown.append(f"[cut here because it is long; go on with mode slice and offset {after}]")
    facts = {"lines": len(block.lines), "has_more": block.is_cut, "next_offset": None}
    return Result(output="\n".join(shown), title=args.file_path, metadata=facts)


def _bytes(data: bytes, line: Line) -> bytes:
    return data[line.start : min(line.end, line.start + file_lines.KEPT_BYTES)]


def _image(args: Args, file: BinaryIO) -> Result:
    picture = images.prepare(_whole(file, args.file_path, images.MOST_INPUT), args.file_path)
    return Result(
        output="Image read successfully",
        title=args.file_path,
        metadata=view_image.facts(picture),
        attachments=(attach(picture.data, picture.mime, os.path.basename(args.file_path)),),
    )


def _pdf(args: Args, file: BinaryIO) -> Result:
    data, mime = _whole(file, args.file_path, MOST_PDF), "application/pdf"
    return Result(
        output="PDF read successfully",
        title=args.file_path,
        metadata={"mime": mime, "size": len(data)},
        attachments=(attach(data, mime, os.path.basename(args.file_path)),),
    )


def _whole(file: BinaryIO, path: str, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(f"{path} has more than {most:,} bytes, which is too large to be read this way.")
    return data


def _count(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def _require_text(head: bytes, path: str) -> None:
    for mark, name in MARKS:
        if head.startswith(mark):
            raise BinaryFile(f"{path} is {name}, which this tool does not read; convert it to UTF-8 first.")
    strange = len(head) - len(head.translate(None, _STRANGE))
    if b"\0" in head or strange > MOST_STRANGE * len(head):
        raise BinaryFile(f"{path} is a binary file, not text; use a tool made for its format.")
