"""read_file: the lines of a text file, numbered."""

import difflib
import errno
import os
from collections.abc import Collection, Iterator
from itertools import islice
from threading import Event
from typing import BinaryIO

from pydantic import BaseModel, Field

from app.core.errors import BinaryFile, CallError, FileFailed, InvalidArgs
from app.core.files import touching
from app.core.ports import Scope, Workspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Truncation, typed

LINE_BYTES = 500
# Decoding never makes a line shorter, so a few bytes more than can be shown are all that matters of it.
KEPT_BYTES = LINE_BYTES + 12
SKIPPED_BYTES = 65_536
SNIFFED_BYTES = 8192
# Cut at a whole line here, because what the line would cut off could not be asked for by its number.
MOST_OUTPUT = Truncation().limit - 1000
MOST_SIBLINGS = 2000


class Args(BaseModel, extra="forbid"):
    file_path: str = Field(description="File to read: relative to the workspace, or absolute and inside it.")
    offset: int = Field(default=1, ge=1, description="Number of the first line to read; the first line is 1.")
    limit: int = Field(default=2000, ge=1, description="Most lines to return.")


def needs(args: Args, scope: Scope) -> list[Need]:
    return touching(scope, "read", [args.file_path])


async def run(args: Args, ctx: Context) -> Result:
    return await ctx.in_thread(lambda stop: _read(args, ctx, stop))


tool = typed(
    Args,
    name="read_file",
    description=(
        "Read a text file. Answers its lines as `L{number}: {text}`; lines longer than 500 bytes are cut."
        " Use offset and limit to read a long file in slices."
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    permission="read",
)


def _read(args: Args, ctx: Context, stop: Event) -> Result:
    with _open(args.file_path, ctx.workspace, ctx.approved) as file:
        try:
            _require_text(file, args.file_path)
            return _slice(args, _lines(file, stop))
        except OSError as error:
            raise FileFailed(error.errno or errno.EIO, args.file_path) from None


def _slice(args: Args, lines: Iterator[bytes]) -> Result:
    shown, size, seen, has_more = list[str](), 0, 0, False
    for seen, line in enumerate(lines, 1):
        if seen < args.offset:
            continue
        if has_more := len(shown) == args.limit or size > MOST_OUTPUT:
            break
        shown.append(f"L{seen}: {_text(line)}")
        size += len(shown[-1]) + 1
    if not shown:
        raise InvalidArgs(f"offset {args.offset} is past the end: {args.file_path} has {_count(seen)}.")
    facts = {"lines": len(shown), "has_more": has_more, "next_offset": seen if has_more else None}
    if has_more and len(shown) < args.limit:
        shown.append(f"[cut here because it is long; go on with offset {seen}]")
    return Result(output="\n".join(shown), title=args.file_path, metadata=facts)


def _lines(file: BinaryIO, stop: Event) -> Iterator[bytes]:
    """Every line, in the little of it that can be shown: a line of a gigabyte takes no memory."""
    while (line := file.readline(KEPT_BYTES)) and not stop.is_set():
        rest = line
        while rest and not rest.endswith(b"\n") and not stop.is_set():
            rest = file.readline(SKIPPED_BYTES)
        yield line


def _text(line: bytes) -> str:
    end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
    text = line.removesuffix(end).decode(errors="replace")
    return text.encode()[:LINE_BYTES].decode(errors="ignore")


def _count(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines} lines"


def _require_text(file: BinaryIO, path: str) -> None:
    if b"\0" in file.read(SNIFFED_BYTES):
        raise BinaryFile(f"{path} is a binary file, not text; use a tool made for its format.")
    file.seek(0)


def _open(path: str, workspace: Workspace, approved: Collection[str] | None) -> BinaryIO:
    try:
        return workspace.open(path, approved=approved)
    except FileFailed as error:
        raise _advised(error, path, workspace) from None


def _advised(error: FileFailed, path: str, workspace: Workspace) -> FileFailed:
    if error.code == "EISDIR":
        return FileFailed(errno.EISDIR, path, f"{path} is a directory; use list_dir to see what is in it.")
    similar = _similar(path, workspace) if error.code == "ENOENT" else []
    if not similar:
        return error
    return FileFailed(errno.ENOENT, path, f"{path} does not exist. Did you mean {' or '.join(similar)}?")


def _similar(path: str, workspace: Workspace) -> list[str]:
    """Up to three files beside the missing one, closest name first."""
    folder, wanted = os.path.split(path)
    try:
        entries = list(islice(workspace.scan(folder or "."), MOST_SIBLINGS))
    except CallError:
        return []
    names = [entry.name for entry in entries if entry.kind != "directory" and entry.name.isprintable()]
    folded = {name.casefold(): name for name in names}
    return [os.path.join(folder, folded[close]) for close in difflib.get_close_matches(wanted.casefold(), folded)]
