"""A doorway: puts a key into every request that goes through, and changes no other byte."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

PATIENCE = 1.0
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


@asynccontextmanager
async def doorway(port: int, key: str) -> AsyncIterator[int]:
    """In front of this port, for clients that cannot send a key; the port of the doorway."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_pass(reader, writer, port, key))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _pass(outside: asyncio.StreamReader, back: asyncio.StreamWriter, port: int, key: str) -> None:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hang_up, back)
        inside, onward = await asyncio.open_connection("127.0.0.1", port)
        stack.push_async_callback(hang_up, onward)
        ways = [asyncio.create_task(_ask(outside, onward, key)), asyncio.create_task(_copy(inside, back))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """What is written is sent, unless nobody takes it; then the connection is over."""
    writer.close()
    try:
        async with asyncio.timeout(PATIENCE):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass  # it was over already


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
    """Requests with bodies of a stated length, one after the other, until the client leaves."""
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line + f"Authorization: Bearer {key}\r\n".encode())
        headers = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(b"\r\n" + headers)
        writer.write(headers + await reader.readexactly(int(length[1]) if length else 0))
        await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
