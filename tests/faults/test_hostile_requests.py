"""Requests that mean harm, against a real service: each gets a 4xx or no answer, and nobody else notices."""

import asyncio
import gzip
import http.client
import json
import os
import re
import resource
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.faults.fault_service import KEY, ROOT
from tests.faults.raw_sockets import Answer, Body, Wire, wired
from tests.faults.service_processes import HANG, clean_environment, runner

pytestmark = pytest.mark.faults

GIGABYTE = 1 << 30
PIECE = b"x" * 65_536
SMALL_CHUNKS = (b"40\r\n" + PIECE[:64] + b"\r\n") * 1000
TINY_CHUNKS = b"1\r\nx\r\n" * 10_000
MOST_GROWTH = 64 * 1024 * 1024
READ_TIMEOUT = 2.0
PATHS = ("/v1/calls", "/v1/calls/batch", "/v1/keys", "/mcp")
ECHO: Body = {"tool": "echo", "arguments": {"token": "t"}}


class Fort:
    """A service in a process of its own, with its log in a file."""

    def __init__(self, data_dir: Path) -> None:
        self._log = data_dir.with_suffix(".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                runner(data_dir),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=clean_environment(TOOLCRIB_READ_TIMEOUT=f"{READ_TIMEOUT}"),
                preexec_fn=_allow_many_sockets,
            )
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self._process.stdout.readline())
        assert found, self.log
        self.port = int(found[1])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def memory(self, name: str) -> int:
        """Bytes, as the kernel counts them: `VmRSS` now, `VmHWM` at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def sockets(self) -> int:
        folder = f"/proc/{self._process.pid}/fd"
        count = 0
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                count += os.readlink(f"{folder}/{name}").startswith("socket:")
        return count

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=HANG)
        assert self._process.returncode == 0, self.log


def _allow_many_sockets() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture(scope="module")
def fort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fort]:
    _allow_many_sockets()
    fort = Fort(tmp_path_factory.mktemp("fort") / "data")
    asyncio.run(use_every_door(fort.port))  # what is loaded with the first use is not what an attack costs
    yield fort
    fort.close()


async def use_every_door(port: int) -> None:
    async with wired(port) as wire:
        assert (await wire.call(ECHO)).status == 200
        for path in PATHS:
            await wire.ask("POST", path, {}, {"Accept": "application/json, text/event-stream"})


@asynccontextmanager
async def unharmed(fort: Fort) -> AsyncIterator[None]:
    """What happens inside costs little memory, leaves no socket and no trace in the log, and the service goes on."""
    before, sockets = fort.memory("VmRSS"), fort.sockets()
    fort.forget_peak()
    async with asyncio.timeout(HANG * 2):
        yield
    async with wired(fort.port) as wire:
        assert (await wire.get("/readyz")).status == 200
        assert (await wire.call(ECHO)).body["status"] == "completed"
    async with asyncio.timeout(HANG):
        while fort.sockets() > sockets:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert fort.memory("VmHWM") - before <= MOST_GROWTH
    assert "Traceback" not in fort.log
    assert not re.search(r"\bERROR\b", fort.log, re.IGNORECASE), fort.log


def head(request: str, *headers: str) -> bytes:
    lines = [f"{request} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return head(f"POST {path}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers) + body


async def send_all(wire: Wire, data: bytes) -> None:
    with suppress(OSError):
        wire.writer.write(data)
        await wire.writer.drain()


async def answer(wire: Wire) -> Answer:
    status, headers = await wire.read_head()
    return Answer(status, headers, await wire.reader.readexactly(int(headers["content-length"])))


async def ask(port: int, data: bytes) -> Answer:
    async with wired(port) as wire:
        sending = asyncio.create_task(send_all(wire, data))
        answered = await answer(wire)
        sending.cancel()
        return answered


async def flood(port: int, begin: bytes, piece: bytes) -> Answer:
    """The same piece without end, until the service takes no more of it; the answer it gave."""
    async with wired(port) as wire:
        await send_all(wire, begin)
        answering = asyncio.create_task(answer(wire))
        with suppress(OSError):
            while not wire.reader.at_eof():
                wire.writer.write(piece)
                await wire.writer.drain()
                await asyncio.sleep(0)  # to read, even if there is room to write on
        return await answering


def assert_problem(answered: Answer, *statuses: int) -> None:
    assert answered.status in statuses, answered
    assert answered.headers["content-type"] == "application/problem+json"
    assert answered.body["status"] == answered.status


@pytest.mark.parametrize("path", [*PATHS, "/v1/tools", "/healthz"])
async def test_a_gigabyte_is_refused_by_its_length(fort: Fort, path: str) -> None:
    async with unharmed(fort):
        refused = await flood(fort.port, head(f"POST {path}", f"Content-Length: {GIGABYTE}"), PIECE)

    assert_problem(refused, 413)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("piece", "status"),
    [(b"10000\r\n" + PIECE + b"\r\n", 413), (SMALL_CHUNKS, 413), (TINY_CHUNKS, 400)],
    ids=["large", "small", "tiny"],
)
async def test_chunks_without_end_are_refused_while_they_come(fort: Fort, path: str, piece: bytes, status: int) -> None:
    begin = head(f"POST {path}", "Content-Type: application/json", "Transfer-Encoding: chunked")
    async with unharmed(fort):
        refused = await flood(fort.port, begin, piece)

    assert_problem(refused, status)


async def test_chunks_without_end_from_a_stranger_are_not_taken(fort: Fort) -> None:
    begin = head("POST /v1/calls", "Transfer-Encoding: chunked").replace(KEY.encode(), b"tk_wrong")
    async with unharmed(fort):
        refused = await flood(fort.port, begin, b"10000\r\n" + PIECE + b"\r\n")

    assert_problem(refused, 401)


def by_httpx(port: int, folder: Path) -> int:
    def pieces() -> Iterator[bytes]:
        for _ in range(GIGABYTE // len(PIECE)):
            yield PIECE

    headers = {"Authorization": f"Bearer {KEY}", "Content-Length": f"{GIGABYTE}"}
    with httpx.Client(trust_env=False, timeout=HANG) as client:
        return client.post(f"http://127.0.0.1:{port}/v1/calls", content=pieces(), headers=headers).status_code


def by_http_client(port: int, folder: Path) -> int:
    """It looks for an answer only when it cannot send any more."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Length": f"{GIGABYTE}"}
    with suppress(OSError):
        connection.request("POST", "/v1/calls", (PIECE for _ in range(GIGABYTE // len(PIECE))), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def by_curl(port: int, folder: Path) -> int:
    """It would ask first whether it may send; here it is told not to."""
    large = folder / "large"
    with large.open("wb") as file:
        file.truncate(GIGABYTE)
    command = ["curl", "-s", "-o", str(folder / "answer"), "-w", "%{http_code}", "-H", "Expect:", "-T", str(large)]
    key = ["-H", f"Authorization: Bearer {KEY}", "-X", "POST"]
    said = subprocess.run([*command, *key, f"http://127.0.0.1:{port}/v1/calls"], capture_output=True, timeout=HANG)
    return int(said.stdout)


@pytest.mark.parametrize("client", [by_httpx, by_http_client, by_curl])
async def test_a_client_that_sends_a_gigabyte_sees_why_it_is_refused(
    fort: Fort, client: Callable[[int, Path], int], tmp_path: Path
) -> None:
    async with unharmed(fort):
        assert await asyncio.to_thread(client, fort.port, tmp_path) == 413


def call_with(value: bytes) -> bytes:
    return b'{"tool":"echo","arguments":{"token":' + value + b"}}"


BODIES = {
    "200k deep": call_with(b"[" * 200_000 + b"]" * 200_000),
    "200k deep, open": call_with(b'{"a":' * 200_000),
    "8 MiB deep": b"[" * (8 << 20),
    "many values": b"[" + b"[]," * 2_700_000 + b"[]]",
    "5,000 digits": call_with(b"9" * 5000),
    "1,000,000 digits": call_with(b"9" * 1_000_000),
    "8 MiB of digits": b"9" * (8 << 20),
    "a long exponent": call_with(b"1e" + b"9" * 1001),
    "beyond all range": call_with(b"1e999"),
    "NaN": call_with(b"NaN"),
    "Infinity": call_with(b"-Infinity"),
    "a lone surrogate": call_with(b'"\\ud800"'),
    "a lone surrogate in a key": b'{"tool":"echo","arguments":{"\\udfff":1}}',
    "invalid UTF-8": call_with(b'"\xff\xfe"'),
    "an encoded surrogate": call_with(b'"\xed\xa0\x80"'),
    "UTF-16": '{"tool":"echo"}'.encode("utf-16"),
    "8 MiB of quotes": b'"' * (8 << 20),
    "8 MiB of backslashes": b'"' + b"\\" * ((8 << 20) - 1),
    "nothing": b"",
    "zeros": bytes(1 << 20),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_that_is_no_json_is_refused_everywhere(fort: Fort, body: bytes) -> None:
    async with unharmed(fort):
        for path in PATHS:
            assert_problem(await ask(fort.port, post(path, body)), 400)


@pytest.mark.parametrize("size", [1 << 20, 10 << 30], ids=["bomb", "said to be one"])
async def test_a_packed_bomb_is_not_unpacked(fort: Fort, size: int) -> None:
    bomb = gzip.compress(bytes(1 << 20) * 64)[:size]
    async with unharmed(fort):
        for path in PATHS:
            assert_problem(await ask(fort.port, post(path, bomb, "Content-Encoding: gzip")), 415)
            assert_problem(await ask(fort.port, post(path, bomb)), 400)


async def test_of_two_equal_keys_the_last_wins(fort: Fort) -> None:
    body = b'{"tool":"nothing","tool":"echo","arguments":{"token":"a","token":"b"}}'
    async with unharmed(fort):
        answered = await ask(fort.port, post("/v1/calls", body))

    assert (answered.status, answered.body["result"]["output"]) == (200, "b")


async def test_a_million_equal_keys_are_too_many(fort: Fort) -> None:
    async with unharmed(fort):
        assert_problem(await ask(fort.port, post("/v1/calls", b"{" + b'"a":1,' * 1_000_000 + b'"a":1}')), 400)


@pytest.mark.parametrize(
    ("lengths", "status"),
    [
        (["Content-Length: -1"], 400),
        (["Content-Length: 2", "Content-Length: 3"], 400),
        (["Content-Length: 2, 3"], 400),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], 400),
        (["Content-Length: 0x10"], 400),
        (["Content-Length: 5"], 400),
        (["Content-Length: 100000"], 408),
        ([f"Content-Length: {1 << 62}"], 413),
        ([f"Content-Length: {1 << 80}"], 400),
    ],
    ids=["negative", "two", "two in one", "and chunked", "hex", "too short", "too long", "huge", "overflow"],
)
async def test_a_length_that_lies_is_refused(fort: Fort, lengths: list[str], status: int) -> None:
    async with unharmed(fort):
        assert_problem(await ask(fort.port, head("POST /v1/calls", *lengths) + json.dumps(ECHO).encode()), status)


HEADS = {
    "a line without end": (b"GET / HTTP/1.1\r\nX: ", b"x" * 4096, 431),
    "a name without end": (b"GET / HTTP/1.1\r\n", b"x" * 4096, 431),
    "headers without end": (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 100, 431),
    "a URL without end": (b"GET /", b"x" * 4096, 414),
    "empty lines without end": (b"", b"\r\n" * 4096, 431),
    "no HTTP": (b"", b"\x00\xff" * 4096, 400),
    "a chunk size without end": (head("POST /v1/calls", "Transfer-Encoding: chunked"), b"0" * 4096, 431),
    "an extension without end": (head("POST /v1/calls", "Transfer-Encoding: chunked") + b"1;", b"x" * 4096, 431),
    "trailers without end": (head("POST /v1/keys", "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n" * 700, 431),
}


@pytest.mark.parametrize(("begin", "piece", "status"), HEADS.values(), ids=HEADS)
async def test_what_never_ends_is_refused_while_it_comes(fort: Fort, begin: bytes, piece: bytes, status: int) -> None:
    async with unharmed(fort):
        assert_problem(await flood(fort.port, begin, piece), status)


async def slow_head(port: int, number: int) -> int | None:
    """Half of them say nothing more, the others a little now and then."""
    async with wired(port) as wire:
        wire.writer.write(head("GET /healthz")[:-2])
        return await dawdle(wire, b"X: y\r\n" if number % 2 else b"")


async def slow_body(port: int, number: int) -> int | None:
    async with wired(port) as wire:
        wire.writer.write(head("POST /v1/calls", "Content-Length: 100000") + b"{")
        return await dawdle(wire, b" " if number % 2 else b"")


async def dawdle(wire: Wire, piece: bytes) -> int | None:
    answering = asyncio.create_task(answer(wire))
    with suppress(OSError):
        while not answering.done():
            wire.writer.write(piece)
            await asyncio.sleep(0.2)
    try:
        refused = await answering
    except (EOFError, OSError):
        return None  # on a busy machine: it had not said a word in time, or wrote on before it read
    assert_problem(refused, 408)
    return refused.status


async def test_a_thousand_slow_clients_are_let_go_while_others_are_served(fort: Fort) -> None:
    served = 0
    async with unharmed(fort), wired(fort.port) as wire, asyncio.TaskGroup() as group:
        assert (await wire.call(ECHO)).status == 200
        slow = [group.create_task(slow_head(fort.port, number)) for number in range(500)]
        slow += [group.create_task(slow_body(fort.port, number)) for number in range(500)]
        while not all(task.done() for task in slow):
            assert (await wire.call(ECHO)).status == 200
            served += 1

    ends = [task.result() for task in slow]
    assert set(ends) <= {408, None}
    assert ends.count(408) > 100
    assert served > 10
