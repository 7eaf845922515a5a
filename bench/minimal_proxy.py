"""`python -m bench.minimal_proxy --port P --data-dir D auto|legacy COMMAND…`: the least that a durable proxy can do.

No key, no rules, no events and no lists: a request is taken apart by hand, kept in a table without an index, sent to
the server, its end is kept, and it is answered. Both commits are on the disk before anything goes on, and are made by a
thread, so that the loop does not stand still. What this takes is taken by whoever keeps such promises.
"""

import argparse
import asyncio
import json
import os
import queue
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import uvloop

from bench.echo_server import LEGACY, MODERN, Connection

PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000")
TABLE = "CREATE TABLE calls (id INTEGER PRIMARY KEY, status TEXT, arguments TEXT, result TEXT)"
ADD = "INSERT INTO calls VALUES (?, 'running', ?, NULL)"
END = "UPDATE calls SET status = 'completed', result = ? WHERE id = ?"
PREFIX = "io.modelcontextprotocol/"
SELF = {"name": "least", "version": "1"}
META = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientInfo": SELF, f"{PREFIX}clientCapabilities": {}}

Change = tuple[str, tuple[Any, ...], "asyncio.Future[None]"]


class Records:
    """One table, one thread that writes it."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}").close()
        self._db.execute(TABLE)
        threading.Thread(target=self._work, daemon=True).start()

    async def commit(self, statement: str, *values: Any) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._changes.put((statement, values, done))
        await done

    def _work(self) -> None:
        cursor = self._db.cursor()
        while True:
            statement, values, done = self._changes.get()
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(statement, values)
            cursor.execute("COMMIT")
            self._loop.call_soon_threadsafe(done.set_result, None)


class Upstream:
    """The server, by its two pipes."""

    def __init__(self, command: list[str], is_modern: bool) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._meta = {"_meta": META} if is_modern else {}
        self._rest = b""
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._out, self._read)

    async def greet(self) -> None:
        if self._meta:
            await self.ask(0, "server/discover", {})
            return
        await self.ask(0, "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": SELF})
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._asked[number] = answer
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params | self._meta})
        return await answer

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _write(self, message: dict[str, Any]) -> None:
        os.write(self._in, json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._out, 65536)).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self._asked.pop(message["id"]).set_result(message["result"])


class Frontend(Connection):
    """One client. Each of its requests is a call."""

    calls = 0

    def __init__(self, records: Records, upstream: Upstream) -> None:
        super().__init__()
        self._records = records
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, method: bytes, body: bytes) -> None:
        Frontend.calls += 1
        task = asyncio.get_running_loop().create_task(self._call(Frontend.calls, json.loads(body)["arguments"]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, number: int, arguments: dict[str, Any]) -> None:
        await self._records.commit(ADD, number, json.dumps(arguments))
        result = await self._upstream.ask(number, "tools/call", {"name": "echo", "arguments": arguments})
        output = result["content"][0]["text"]
        await self._records.commit(END, output, number)
        if not self.transport.is_closing():
            self.answer(json.dumps({"id": number, "output": output}, separators=(",", ":")).encode())


async def serve(port: int, data_dir: Path, mode: str, command: list[str]) -> None:
    records, upstream = Records(data_dir / "least.db"), Upstream(command, mode == "auto")
    try:
        await upstream.greet()
        server = await asyncio.get_running_loop().create_server(lambda: Frontend(records, upstream), "127.0.0.1", port)
        await server.serve_forever()
    finally:
        upstream.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("mode", choices=("auto", "legacy"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    given.data_dir.mkdir()
    uvloop.run(serve(given.port, given.data_dir, given.mode, given.command))
