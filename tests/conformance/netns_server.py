"""Run a server that would listen on all interfaces where there is only loopback.

`unshare -n python -m tests.conformance.netns_server SOCKET PORT COMMAND…` starts the command in a network of its own,
and joins whoever comes to the Unix socket with the port in there.
"""

import asyncio
import sys
from pathlib import Path

from tests.conformance.auth_proxy import hang_up
from tests.conformance.loopback import switch_on


async def main(path: Path, port: int, command: list[str]) -> None:
    switch_on()
    process = await asyncio.create_subprocess_exec(*command)
    while True:  # whoever finds the socket can count on an answer
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            assert process.returncode is None, "the server did not start"
            await asyncio.sleep(0.05)
    writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, *await asyncio.open_connection("127.0.0.1", port))

    await asyncio.start_unix_server(accept, path)
    await process.wait()


async def join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inner_reader: asyncio.StreamReader,
    inner_writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways until both are done."""
    try:
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
    except OSError:
        pass  # one side has left
    finally:
        await hang_up(writer)
        await hang_up(inner_writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
