"""Exports calls as JSON Lines from the database, beside a running service or without one."""

import asyncio
import base64
import codecs
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.config import Settings
from app.core.calls import Call
from app.core.errors import StoreUnavailable
from app.core.util.json_codec import dumps
from app.store import atomic_write, calls, db, migrate, outputs
from app.store.calls import CallFilter

PAGE_SIZE = 200
READ_BYTES = 256 * 1024
BASE64_BYTES = 3 * 64 * 1024
"""A multiple of 3, so that the base64 of consecutive parts can be joined."""


def export(settings: Settings, where: CallFilter, *, to: Path | None, with_output: bool) -> int:
    """Write all matching calls, oldest first, to a file or to stdout; returns their number."""
    url = _check_schema(db.database_url(settings.data_dir.absolute(), settings.database_url))
    if to is None:
        return _to_stdout(url, where, with_output)
    if to.is_dir() or not to.parent.is_dir():
        raise StoreUnavailable(f"{to} is not a file in an existing directory.")
    with atomic_write.atomic_file(to, replace=True) as part, part.open("wb") as sink:
        return asyncio.run(_write(url, where, with_output, sink))


def _check_schema(url: URL) -> URL:
    if not Path(str(url.database)).exists():
        raise StoreUnavailable(f"There is no database {url.database} to export from.")
    with db.translated_errors(url):
        if migrate.current(url) != migrate.revisions()[-1]:
            raise StoreUnavailable(f"The database {url.database} has another schema. Run `toolcrib db upgrade` first.")
    return url


def _to_stdout(url: URL, where: CallFilter, with_output: bool) -> int:
    sink = sys.stdout.buffer
    try:
        count = asyncio.run(_write(url, where, with_output, sink))
        sink.flush()
    except BrokenPipeError:  # the reader has closed the pipe; nothing may be flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sink.fileno())
        return 0
    return count


async def _write(url: URL, where: CallFilter, with_output: bool, sink: BinaryIO) -> int:
    engine = db.open_readers(url)
    try:
        with db.translated_errors(url):
            return await _write_calls(engine, where, with_output, sink)
    finally:
        await engine.dispose()


async def _write_calls(engine: AsyncEngine, where: CallFilter, with_output: bool, sink: BinaryIO) -> int:
    count = 0
    async for page in calls.iterate(engine, where, PAGE_SIZE):
        for call in page:
            line = dumps(call.view())
            if with_output:
                sink.write(line[:-1] + b',"full_output":"')
                async for text in _output(engine, call):
                    sink.write(json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace"))
                await _write_attachments(engine, call, sink)
                line = b"}"
            sink.write(line + b"\n")
            count += 1
    return count


async def _write_attachments(engine: AsyncEngine, call: Call, sink: BinaryIO) -> None:
    """The attachments stored outside the result, as base64 by number."""
    numbers = sorted(await outputs.attachment_sizes(engine, call.id))
    separator = b'","full_attachments":{"'
    for number in numbers:
        sink.write(separator + b'%d":"' % number)
        offset, separator = 0, b'","'
        while data := await outputs.read_attachment(engine, call.id, number, offset, BASE64_BYTES):
            offset += len(data)
            sink.write(base64.b64encode(data))
    sink.write(b'"}' if numbers else b'"')


async def _output(engine: AsyncEngine, call: Call) -> AsyncIterator[str]:
    """The whole output in parts, as in `GET /v1/calls/{id}/output`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    while data := await outputs.read(engine, call.id, offset, READ_BYTES):
        offset += len(data)
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)
    if not offset and call.result is not None:
        yield str(json.loads(call.result)["output"])
