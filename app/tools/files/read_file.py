"""read_file: the lines of a text file, numbered; images and PDF as attachments; folders as a list."""

import errno
import os
from threading import Event
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, Field

from app.core.errors import BinaryFile, FileFailed, InvalidArgs, TooLarge
from app.core.files import touching
from app.core.ports import PathScope
from app.core.results import Result, attach
from app.core.rules import Need
from app.core.tools import Alias, Context, Effect, typed
from app.text import file_lines, images
from app.text.file_lines import Shape
from app.text.file_text import WIDE_BOMS
from app.text.similar_paths import suggest_if_missing
from app.tools.files._shared import MAX_OUTPUT, count_lines, list_folder

HEAD_BYTES = 8192
MAX_CONTROL_SHARE = 0.3
MAX_PDF_BYTES = 20 * 1024 * 1024
MAX_INDENTED_BYTES = 64 * 1024 * 1024
PDF = "application/pdf"
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\a\b\t\n\v\f\r\x1b")


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
    return await suggest_if_missing(args.file_path, ctx, ctx.in_thread(lambda stop: _read(args, ctx, stop)))


def _adapt(raw: Any) -> Any:
    """The peer's argument name, and its offset 0 for the first line."""
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
    aliases=(Alias("read", _adapt),),
)


def _read(args: Args, ctx: Context, stop: Event) -> Result:
    try:
        file = ctx.workspace.open(args.file_path, approved=ctx.approved)
    except FileFailed as error:
        if error.code != "EISDIR":
            raise
        given = args.model_dump(include={"offset", "limit"}, exclude_unset=True)
        return list_folder(args.file_path, ctx, stop, **given)
    with file:
        try:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            if images.kind_of(head):
                return _image(args, file)
            if head.startswith(b"%PDF-"):
                data = _whole(file, args.file_path, MAX_PDF_BYTES)
                facts = {"mime": PDF, "size": len(data)}
                return _attachment(args.file_path, "PDF read successfully", data, facts)
            _require_text(head, args.file_path)
            return _block(args, file) if args.mode == "indentation" else _slice(args, file, stop)
        except OSError as error:
            raise FileFailed(error.errno or errno.EIO, args.file_path) from None


def _slice(args: Args, file: BinaryIO, stop: Event) -> Result:
    seen = file_lines.skip_lines(file, args.offset - 1, stop)
    shown, size, has_more = list[str](), 0, False
    for seen, line in enumerate(file_lines.read_lines(file, stop), args.offset):
        if has_more := len(shown) == args.limit or size > MAX_OUTPUT:
            break
        shown.append(f"L{seen}: {file_lines.display_line(line)}")
        size += len(shown[-1]) + 1
    if not shown:
        raise InvalidArgs(f"offset {args.offset} is past the end: {args.file_path} has {count_lines(seen)}.")
    facts = {"lines": len(shown), "has_more": has_more, "next_offset": seen if has_more else None}
    if has_more and len(shown) < args.limit:
        shown.append(f"[cut here because it is long; go on with offset {seen}]")
    return Result(output="\n".join(shown), title=args.file_path, metadata=facts)


def _block(args: Args, file: BinaryIO) -> Result:
    options, data = args.indentation, _whole(file, args.file_path, MAX_INDENTED_BYTES)
    anchor = options.anchor_line or args.offset
    shape = Shape(levels=options.max_levels, siblings=options.include_siblings, header=options.include_header)
    limit = min(args.limit, options.max_lines or args.limit)
    block = file_lines.find_block(data, anchor, shape, limit=limit, max_bytes=MAX_OUTPUT)
    if block is None:
        lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        raise InvalidArgs(f"anchor_line {anchor} is past the end: {args.file_path} has {count_lines(lines)}.")
    shown = [f"L{line.number}: {file_lines.display_line(line.read(data))}" for line in block.lines]
    if block.is_too_long:
        after = block.lines[-1].number + 1 if block.lines else anchor
        shown.append(f"[cut here because it is long; go on with mode slice and offset {after}]")
    facts = {"lines": len(block.lines), "has_more": block.is_cut, "next_offset": None}
    return Result(output="\n".join(shown), title=args.file_path, metadata=facts)


def _image(args: Args, file: BinaryIO) -> Result:
    picture = images.prepare(_whole(file, args.file_path, images.MAX_INPUT_BYTES), args.file_path)
    return _attachment(args.file_path, "Image read successfully", picture.data, picture.facts())


def _attachment(path: str, output: str, data: bytes, facts: dict[str, Any]) -> Result:
    attached = attach(data, facts["mime"], os.path.basename(path))
    return Result(output=output, title=path, metadata=facts, attachments=(attached,))


def _whole(file: BinaryIO, path: str, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"{path} has more than {limit:,} bytes, which is too large to be read this way.")
    return data


def _require_text(head: bytes, path: str) -> None:
    for bom, name in WIDE_BOMS:
        if head.startswith(bom):
            raise BinaryFile(f"{path} is {name}, which this tool does not read; convert it to UTF-8 first.")
    control = len(head) - len(head.translate(None, _CONTROL))
    if b"\0" in head or control > MAX_CONTROL_SHARE * len(head):
        raise BinaryFile(f"{path} is a binary file, not text; use a tool made for its format.")
