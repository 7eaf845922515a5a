"""The egress proxy under fire: names that are none, requests that say two things, floods, and the sudden end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from app.core.sandbox import NetworkDecision
from app.net.egress.proxy_client import ProxyLimits
from tests.support.egress_client import GUARD, hear, listening, way_out
from tests.support.http_servers import Peer, Seen, reply, serving

HOST = "api.example"
MIB = 1024 * 1024


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": reply(b"hello")}) as peer:
        yield peer


HOSTILE = {
    "nul": b"api.example\0.evil.example",
    "nul-before": b"evil.example\0.api.example",
    "blank": b"api.example%20",
    "percent": b"%61pi.example",
    "user": b"api.example@evil.example",
    "user-password": b"a:b@api.example",
    "backslash": b"api.example\\@evil.example",
    "two-dots": b"api.example..",
    "dot-before": b".api.example",
    "empty": b"",
    "dot": b".",
    "tab": b"api.exam\tple",
    "escape": b"\x1b[2Japi.example",
    "delete": b"api.example\x7f",
    "long-name": b"a." * 150 + b"example",
    "long-label": b"a" * 64 + b".example",
    "dash": b"-api.example",
    "star": b"*.example",
    "no-utf8": b"api\xff.example",
    "full-width": "\uff41\uff50\uff49.example".encode(),
    "zero-width": "api\u200b.example".encode(),
    "slash-like": "api.example\u2044evil".encode(),
    "short-address": b"127.1",
    "octal-address": b"0177.0.0.1",
    "hex-address": b"0x7f.0.0.1",
    "number": b"2130706433",
    "hex-number": b"0x7f000001",
    "five-numbers": b"127.0.0.1.1",
    "zone": b"[fe80::1%25lo]",
    "open-bracket": b"[::1",
    "mapped": b"[::ffff:7f00:1",
    "semicolon": b"api.example;evil.example",
    "comma": b"api.example,evil.example",
}


@pytest.mark.parametrize("method", [b"CONNECT", b"GET"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_host_that_is_none_is_refused_and_told_in_harmless_letters(
    peer: Peer, name: str, method: bytes
) -> None:
    asked = list[str]()

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    authority = HOSTILE[name] + b":%d" % peer.port
    target = authority if method == b"CONNECT" else b"http://" + authority + b"/secret/path?query"
    async with way_out("*.example", HOST, ports=[peer.port], resolve=resolve) as way:
        heard = hear(await way.send(method + b" " + target + b" HTTP/1.1\r\nHost: api.example\r\n\r\n"))

    assert (heard.status, heard.reason) == (403, "bad-host")
    [decision] = way.decisions
    assert (decision.is_allowed, decision.reason) == (False, "bad-host")
    assert decision.host.isascii()
    assert decision.host.isprintable()
    assert len(decision.host) <= 253
    assert "secret" not in decision.host
    assert "a:b" not in decision.host
    assert (asked, peer.connections) == ([], 0)


BROKEN = {
    "blank-in-host": b"CONNECT api.example evil.example:443 HTTP/1.1\r\n\r\n",
    "no-version": b"GET http://api.example/\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http9": b"GET http://api.example/ HTTP/9.9\r\n\r\n",
    "two-blanks": b"GET  http://api.example/ HTTP/1.1\r\n\r\n",
    "bare-lf-line": b"GET http://api.example/ HTTP/1.1\nX: y\r\n\r\n",
    "bare-lf-field": b"GET http://api.example/ HTTP/1.1\r\nX: y\nHost: z\r\n\r\n",
    "bare-cr": b"GET http://api.example/ HTTP/1.1\r\nX: y\rHost: z\r\n\r\n",
    "cr-in-target": b"GET http://api.example/\rx HTTP/1.1\r\n\r\n",
    "nul-in-field": b"GET http://api.example/ HTTP/1.1\r\nX: a\0b\r\n\r\n",
    "folded": b"GET http://api.example/ HTTP/1.1\r\nX: a\r\n b\r\n\r\n",
    "blank-before-colon": b"GET http://api.example/ HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello",
    "no-colon": b"GET http://api.example/ HTTP/1.1\r\nHost\r\n\r\n",
    "no-name": b"GET http://api.example/ HTTP/1.1\r\n: x\r\n\r\n",
    "two-hosts": b"GET http://api.example/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "leading-line": b"\r\nGET http://api.example/ HTTP/1.1\r\n\r\n",
    "tls": b"\x16\x03\x01\x00\x05hello\r\n\r\n",
}


async def test_what_is_no_request_is_refused_and_goes_nowhere(subtests: pytest.Subtests) -> None:
    for name in BROKEN:
        with subtests.test(name=name):
            async with way_out(HOST) as way:
                heard = hear(await way.send(BROKEN[name]))

            assert (heard.status, heard.reason) == (400, "bad-request")
            assert way.decisions == []


SMUGGLED = {
    "both": (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "both-other-way": (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
    "two-lengths": (b"Content-Length: 5\r\nContent-Length: 6", b"hello"),
    "same-lengths": (b"Content-Length: 5\r\nContent-Length: 5", b"hello"),
    "list": (b"Content-Length: 5, 5", b"hello"),
    "plus": (b"Content-Length: +5", b"hello"),
    "minus": (b"Content-Length: -5", b"hello"),
    "hex": (b"Content-Length: 0x5", b"hello"),
    "huge": (b"Content-Length: 99999999999999999999", b"hello"),
    "empty": (b"Content-Length:", b"hello"),
    "identity": (b"Transfer-Encoding: identity", b"hello"),
    "gzip": (b"Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
    "two-encodings": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "vertical-tab": (b"Transfer-Encoding: \x0bchunked", b"0\r\n\r\n"),
    "quoted": (b'Transfer-Encoding: "chunked"', b"0\r\n\r\n"),
    "expect": (b"Expect: something\r\nContent-Length: 5", b"hello"),
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_body_whose_end_is_not_clear_is_refused_before_anything_goes_out(peer: Peer, name: str) -> None:
    header, body = SMUGGLED[name]
    async with way_out(HOST, ports=[peer.port]) as way:
        start = f"POST {peer.url('/', HOST)} HTTP/1.1\r\n".encode()
        heard = hear(await way.send(start + header + b"\r\n\r\n" + body + b"GET /smuggled HTTP/1.1\r\n\r\n"))

    assert (heard.status in (400, 417), heard.reason) == (True, "bad-request")
    assert [decision.is_allowed for decision in way.decisions] in ([False], [])
    assert peer.connections == 0


CHUNKS = {
    "junk-size": b"5x\r\nhello\r\n0\r\n\r\n",
    "hex-mark": b"0x5\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "huge": b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "extension": b"5;a=b\r\nhello\r\n0\r\n\r\n",
    "blank": b"5 \r\nhello\r\n0\r\n\r\n",
    "bare-lf": b"5\nhello\r\n0\r\n\r\n",
    "too-long": b"5\r\nhello there\r\n0\r\n\r\n",
    "no-end": b"5\r\nhelloXX0\r\n\r\n",
    "empty-size": b"\r\nhello\r\n0\r\n\r\n",
    "endless-size": b"1" * 70_000,
    "endless-trailer": b"0\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
    "cut": b"5\r\nhel",
}


@pytest.mark.parametrize("name", CHUNKS)
async def test_chunks_that_are_none_end_the_request(name: str) -> None:
    taken = bytearray()

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                taken.extend(data)
        writer.close()

    server = await asyncio.start_server(host, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, way_out(HOST, ports=[port]) as way:
        reader, writer = await way.open()
        start = f"POST http://{HOST}:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        writer.write(start + CHUNKS[name])
        writer.write_eof()
        async with asyncio.timeout(GUARD):
            heard = hear(await reader.read())
        writer.close()

    assert (heard.status, heard.reason) == (400, "bad-request")
    assert b"0\r\n\r\n" not in taken  # it never looked whole


async def test_a_body_in_chunks_is_written_anew_and_nothing_behind_it_goes_along() -> None:
    taken = bytearray()

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not taken.endswith(b"0\r\n\r\n"):
            taken.extend(await reader.read(65536))
        writer.write(reply(b"done"))
        writer.close()

    server = await asyncio.start_server(host, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, way_out(HOST, ports=[port]) as way:
        heard = await way.ask(
            f"POST http://{HOST}:{port}/",
            "Transfer-Encoding: chunked",
            body=b"005\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: 1\r\n\r\nGET http://other.example/ HTTP/1.1\r\n\r\n",
        )

    assert heard.body == b"done"
    head, _, body = bytes(taken).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    assert len(way.decisions) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" * 20,
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"",
    ],
    ids=["both", "two-lengths", "folded", "interim", "status", "http2", "ssh", "long", "many", "cut", "nothing"],
)
async def test_an_answer_that_is_none_becomes_a_502(peer: Peer, answer: bytes) -> None:
    peer.pages["/"] = answer
    async with way_out(HOST, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}")

    assert (heard.status, heard.reason) == (502, "upstream-broken")
    assert way.decisions == [NetworkDecision(HOST, peer.port, True, "allowed")]


async def test_answers_before_the_answer_are_left_out(peer: Peer) -> None:
    peer.pages["/"] = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(b"hello")
    peer.pages["/none"] = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with way_out(HOST, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}")
        head = await way.ask(f"HEAD {peer.url('/', HOST)}")
        none = await way.ask(f"GET {peer.url('/none', HOST)}")

    assert (heard.status, heard.body) == (200, b"hello")
    assert (head.status, head.headers["content-length"], head.body) == (200, "5", b"")
    assert none.raw == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_answer_that_breaks_off_does_not_look_whole(peer: Peer, is_chunked: bool) -> None:
    framing = "Transfer-Encoding: chunked" if is_chunked else "Content-Length: 100"

    def breaking(request: Seen, writer: asyncio.StreamWriter) -> bytes:
        return f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nhello\r\n".encode()

    peer.pages["/"] = breaking
    async with way_out(HOST, ports=[peer.port]) as way:
        reader, writer = await way.open()
        writer.write(f"GET {peer.url('/', HOST)} HTTP/1.1\r\n\r\n".encode())
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(GUARD):
                await reader.readuntil(b"0\r\n\r\n" if is_chunked else b"!")
        writer.close()


async def test_an_answer_that_comes_early_is_handed_back_while_the_body_is_still_being_sent() -> None:
    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"too much", "413 Content Too Large"))
        await writer.drain()
        await asyncio.Event().wait()  # it takes no more

    async with listening(host) as port, way_out(HOST, ports=[port]) as way:
        body = b"x" * 2_000_000
        heard = await way.ask(f"POST http://{HOST}:{port}/", f"Content-Length: {len(body) + 1}", body=body)

    assert (heard.status, heard.body) == (413, b"too much")


async def test_a_head_that_comes_slowly_is_not_waited_for(peer: Peer) -> None:
    limits = ProxyLimits(head_seconds=0.2)
    async with way_out(HOST, ports=[peer.port], limits=limits) as way:
        silent = await way.send(b"")
        partial = hear(await way.send(b"GET http://api.example/ HTTP/1.1\r\nX: y\r\n"))

    assert hear(silent).status == partial.status == 408
    assert partial.reason == "slow-request"


@pytest.mark.parametrize(
    "head",
    [b"X: " + b"y" * 17_000 + b"\r\n", b"X: " + b"y" * 200_000, b"X: y\r\n" * 101],
    ids=["long", "endless", "many"],
)
async def test_a_head_over_its_limits_is_refused(head: bytes) -> None:
    async with way_out(HOST) as way:
        heard = hear(await way.send(f"GET http://{HOST}/ HTTP/1.1\r\n".encode() + head + b"\r\n"))

    assert (heard.status, heard.reason) == (431, "bad-request")
