"""Limits of the egress proxy: how much passes, for how long, and what is left at its end."""

import asyncio
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from app.core.network_policy import BoundSecret
from app.core.sandbox import NetworkDecision
from app.net.egress.proxy_client import ProxyLimits
from tests.support.egress_client import GUARD, echoing, hear, listening, read_what_comes, way_out
from tests.support.http_servers import Peer, reply, serving

HOST = "api.example"
MIB = 1024 * 1024


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": reply(b"hello")}) as peer:
        yield peer


async def test_a_connection_ends_when_too_much_passes(peer: Peer) -> None:
    peer.pages["/"] = reply(b"x" * 20_000)
    async with echoing() as port, way_out(HOST, ports=[port, peer.port], limits=ProxyLimits(bytes=10_000)) as way:
        _, reader, writer = await way.connect(f"{HOST}:{port}")
        async with asyncio.timeout(GUARD):
            writer.write(b"x" * 4_000)
            assert len(await reader.readexactly(4_000)) == 4_000
            writer.write(b"x" * 4_000)
            assert len(await read_what_comes(reader)) < 4_000
        writer.close()
        large = await way.ask(f"POST {peer.url('/', HOST)}", "Content-Length: 20000", body=b"x" * 20_000)
        reader, writer = await way.open()
        writer.write(f"GET {peer.url('/', HOST)} HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(GUARD):
            got = await read_what_comes(reader)
        writer.close()

    assert (large.status, large.reason) == (413, "over-limit")
    assert len(got) < 20_000


async def test_a_connection_ends_when_nothing_passes() -> None:
    async with (
        echoing(is_silent=True) as port,
        way_out(HOST, ports=[port], limits=ProxyLimits(idle_seconds=0.2)) as way,
    ):
        _, reader, writer = await way.connect(f"{HOST}:{port}")
        async with asyncio.timeout(GUARD):
            assert await read_what_comes(reader) == b""
        writer.close()
        slow = await way.ask(f"POST http://{HOST}:{port}/", "Content-Length: 5", body=b"he")

    assert (slow.status, slow.reason) == (504, "upstream-timeout")


async def test_a_connection_ends_when_its_time_is_over_whatever_passes() -> None:
    async with echoing() as port, way_out(HOST, ports=[port], limits=ProxyLimits(total_seconds=0.3)) as way:
        _, reader, writer = await way.connect(f"{HOST}:{port}")
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with asyncio.timeout(GUARD):
                while True:
                    writer.write(b"x")
                    await reader.readexactly(1)
        writer.close()

    assert way.decisions == [NetworkDecision(HOST, port, True, "allowed")]


async def test_a_large_body_passes_in_both_directions_and_memory_stays_flat() -> None:
    block, count = b"x" * MIB, 64

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        taken = 0
        while taken < count * MIB:
            taken += len(await reader.read(MIB))
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {count * MIB}\r\n\r\n".encode())
        for _ in range(count):
            writer.write(block)
            await writer.drain()
        writer.close()

    async with listening(host) as port, way_out(HOST, ports=[port]) as way:
        before, most = resident(), 0
        reader, writer = await way.open()
        writer.write(f"PUT http://{HOST}:{port}/ HTTP/1.1\r\nContent-Length: {count * MIB}\r\n\r\n".encode())
        for _ in range(count):
            writer.write(block)
            await writer.drain()
            most = max(most, resident())
        head, taken = await reader.readuntil(b"\r\n\r\n"), 0
        while data := await reader.read(MIB):
            taken += len(data)
            most = max(most, resident())
        writer.close()

    assert hear(head).status == 200
    assert taken == count * MIB
    assert most - before < 24 * MIB


async def test_who_does_not_read_makes_the_host_wait() -> None:
    sent, begun = 0, asyncio.Event()

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
                begun.set()

    limits = ProxyLimits(idle_seconds=0.5)
    async with listening(host) as port, way_out(HOST, ports=[port], limits=limits) as way:
        before = resident()
        _, writer = await asyncio.open_connection("127.0.0.1", way.port, limit=1024)
        writer.write(f"GET http://{HOST}:{port}/ HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(GUARD):
            await begun.wait()
        seen = -1
        while sent != seen:  # until it stands still, or is cut
            seen = sent
            await asyncio.sleep(0.2)
        grown = resident() - before
        writer.close()

    assert 0 < sent < 64 * MIB
    assert grown < 24 * MIB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_the_end_cuts_every_connection_and_leaves_nothing(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(cut_everything())


async def cut_everything() -> None:
    placed = (BoundSecret("KEY", "tls.example", "tsec_1"),)

    async def resolve(host: str, port: int) -> list[str]:
        if host == "slow.example":
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    async with AsyncExitStack() as stack:
        silent = await stack.enter_async_context(echoing(is_silent=True))
        flood = await stack.enter_async_context(listening(flooding))
        before = asyncio.all_tasks(), descriptors()
        clients = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        async with way_out(
            "*.example",
            ports=[silent, flood],
            https=silent,
            resolve=resolve,
            secrets=placed,
            find=lambda owner, name: ((), "value-of-it"),
            trust=ssl.create_default_context(),
        ) as way:
            for said in (
                b"",
                b"GET http://api.exa",
                f"CONNECT api.example:{flood} HTTP/1.1\r\n\r\n".encode(),
                f"CONNECT api.example:{silent} HTTP/1.1\r\n\r\n".encode(),
                f"CONNECT slow.example:{silent} HTTP/1.1\r\n\r\n".encode(),
                f"GET http://api.example:{flood}/ HTTP/1.1\r\n\r\n".encode(),
                f"POST http://api.example:{silent}/ HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc".encode(),
                b"GET http://secrets.internal/KEY/ HTTP/1.1\r\n\r\n",
                b"GET http://other.org/ HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            ):
                reader, writer = await way.open()
                writer.write(said)
                clients.append((reader, writer))
            await asyncio.sleep(0.3)
            late = [await way.open() for _ in range(5)]  # some of them not even accepted
        assert [task for task in asyncio.all_tasks() if "Door" in repr(task)] == []
        async with asyncio.timeout(GUARD):
            for reader, writer in [*clients, *late]:
                await read_what_comes(reader)
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
        await settled(before)


@LOOPS
def test_resets_and_noise_from_either_side_end_a_connection_and_are_no_error_of_ours(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(reset_and_rave())

    assert caplog.records == []


async def reset_and_rave() -> None:
    dice = random.Random(20)

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(dice.choice([1, 100]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * dice.choice([0, 1000]))
        if dice.random() < 0.5:
            reset(writer)

    async with listening(rude) as port, way_out(HOST, ports=[80, port]) as way:
        requests = [
            f"CONNECT {HOST}:{port} HTTP/1.1\r\n\r\nand more".encode(),
            f"POST http://{HOST}:{port}/ HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc".encode(),
            f"PUT http://{HOST}:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode(),
        ]
        for _ in range(150):
            data = bytearray(dice.choice(requests))
            for _ in range(dice.choice([0, 0, 1, 3])):
                data[dice.randrange(len(data))] = dice.randrange(256)
            reader, writer = await way.open()
            writer.write(data)
            if dice.random() < 0.5:
                writer.write_eof()
                async with asyncio.timeout(GUARD):
                    await read_what_comes(reader)
            reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """An end by RST instead of FIN."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def settled(before: tuple[set["asyncio.Task[object]"], int]) -> None:
    """Hosts notice the end a moment later."""
    for _ in range(100):
        if (asyncio.all_tasks(), descriptors()) == before:
            return
        await asyncio.sleep(0.02)
    assert (asyncio.all_tasks(), descriptors()) == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
