"""The egress proxy: who gets out, by tunnels and by plain requests, against real servers on loopback."""

import asyncio
import base64
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.network_policy import OPEN, NetworkPolicy
from app.core.sandbox import NetworkDecision
from app.net.egress.proxy_client import ProxyLimits
from tests.support import certificates
from tests.support.egress_client import GUARD, Way, allowing, everywhere, hear, way_out
from tests.support.http_servers import Peer, Seen, redirect, reply, serving

HOST = "api.example"


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": reply(b"hello", "200 OK", "Content-Type: text/plain")}) as peer:
        yield peer


@pytest.fixture
def certificate(tmp_path: Path) -> certificates.Certificate:
    return certificates.make(tmp_path, HOST)


@pytest.fixture
async def secure(certificate: certificates.Certificate) -> AsyncIterator[Peer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    async with serving({"/": reply(b"hello by TLS")}, tls=context) as peer:
        yield peer


def trusting(certificate: certificates.Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.cert))


async def curl(way: Way, *arguments: str) -> tuple[int, bytes, bytes]:
    environ = {"PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-m", str(GUARD), "-x", f"http://127.0.0.1:{way.port}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout, stderr


async def test_a_listed_host_is_reached_by_a_plain_request(peer: Peer) -> None:
    async with way_out(HOST, ports=[peer.port]) as way:
        heard = await way.ask(f"POST {peer.url('/?a=1', HOST)}", "Content-Length: 2", "X-One: 1", body=b"{}")

    assert (heard.status, heard.body, heard.headers["content-type"]) == (200, b"hello", "text/plain")
    assert peer.seen == [
        Seen(
            "POST",
            "/?a=1",
            {"host": f"{HOST}:{peer.port}", "x-one": "1", "connection": "close", "content-length": "2"},
            b"{}",
        )
    ]
    assert way.decisions == [NetworkDecision(HOST, peer.port, True, "allowed")]


async def test_a_listed_host_is_reached_by_tls_through_a_tunnel(
    secure: Peer, certificate: certificates.Certificate
) -> None:
    async with way_out(HOST, ports=[secure.port], https=secure.port) as way:
        code, stdout, stderr = await curl(way, "--cacert", str(certificate.cert), secure.url("/", HOST, scheme="https"))

    assert (code, stdout, stderr) == (0, b"hello by TLS", b"")
    assert way.decisions == [NetworkDecision(HOST, secure.port, True, "allowed")]


async def test_curl_gets_a_plain_page_and_sends_a_body_that_it_asks_for_first(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"x" * 2_000_000)
    async with way_out(HOST, ports=[peer.port]) as way:
        got = await curl(way, peer.url("/", HOST))
        # A body of this size makes curl wait for `100 Continue`.
        sent = await curl(way, "--data-binary", f"@{tmp_path / 'body'}", peer.url("/", HOST))

    assert got == sent == (0, b"hello", b"")
    assert [len(seen.body) for seen in peer.seen] == [0, 2_000_000]
    assert "expect" not in peer.seen[1].headers


async def test_curl_is_told_why_a_host_is_not_reached(peer: Peer) -> None:
    async with way_out(HOST, ports=[peer.port]) as way:
        code, stdout, stderr = await curl(way, "-i", peer.url("/", "other.example"))
        tunnel_code, _, tunnel_stderr = await curl(way, peer.url("/", "other.example", scheme="https"))

    assert (code, stderr) == (0, b"")
    assert b"X-Proxy-Error: blocked-by-allowlist" in stdout
    assert b"other.example is not on the allow-list" in stdout
    assert (tunnel_code, b"403" in tunnel_stderr) == (56, True)
    assert way.decisions == [NetworkDecision("other.example", peer.port, False, "blocked-by-allowlist")] * 2
    assert peer.connections == 0


@pytest.mark.parametrize("method", ["CONNECT", "GET"])
@pytest.mark.parametrize(
    ("policies", "reason"),
    [
        ([allowing("other.example")], "blocked-by-allowlist"),
        ([allowing("*.api.example")], "blocked-by-allowlist"),
        ([allowing(HOST), allowing("other.example")], "blocked-by-allowlist"),
        ([allowing(HOST), NetworkPolicy("disabled")], "blocked-by-policy"),
        ([OPEN, None], "blocked-by-policy"),
        ([], "blocked-by-policy"),
    ],
    ids=["other", "below", "narrowed", "disabled", "open", "none"],
)
async def test_every_policy_has_to_allow_a_host_and_one_to_list_it(
    peer: Peer, policies: list[NetworkPolicy | None], reason: str, method: str
) -> None:
    target = f"{HOST}:{peer.port}" if method == "CONNECT" else peer.url("/", HOST)
    async with way_out(policies=policies, ports=[peer.port]) as way:
        heard = await way.ask(f"{method} {target}")

    assert (heard.status, heard.reason) == (403, reason)
    assert way.decisions == [NetworkDecision(HOST, peer.port, False, reason)]
    assert peer.connections == 0


async def test_an_open_policy_beside_a_list_does_not_widen_it(peer: Peer) -> None:
    async with way_out("*.example", policies=[OPEN, None], ports=[peer.port]) as way:
        listed = await way.ask(f"GET {peer.url('/', HOST)}")
        other = await way.ask(f"GET {peer.url('/', 'example.org')}")

    assert (listed.status, other.status) == (200, 403)


@pytest.mark.parametrize("port", [22, 25, 8080])
async def test_other_ports_are_closed(port: int) -> None:
    async with way_out(HOST) as way:
        tunnel = await way.ask(f"CONNECT {HOST}:{port}")
        plain = await way.ask(f"GET http://{HOST}:{port}/")

    assert {(heard.status, heard.reason) for heard in (tunnel, plain)} == {(403, "port-not-allowed")}
    assert way.decisions == [NetworkDecision(HOST, port, False, "port-not-allowed")] * 2


async def test_an_address_is_reached_only_where_it_is_listed_as_it_is(peer: Peer) -> None:
    async with way_out("*.0.0.1", "*.example", ports=[peer.port]) as way:
        refused = await way.ask(f"GET {peer.url()}")
        tunnel = await way.ask(f"CONNECT 127.0.0.1:{peer.port}")
        six = await way.ask(f"CONNECT [::1]:{peer.port}")
    assert {(heard.status, heard.reason) for heard in (refused, tunnel, six)} == {(403, "blocked-by-allowlist")}
    assert peer.connections == 0

    async with way_out("127.0.0.1", ports=[peer.port]) as way:
        allowed = await way.ask(f"GET {peer.url()}")
    assert allowed.status == 200


@pytest.mark.parametrize("is_tunnel", [True, False])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00::1"])
async def test_a_listed_name_that_leads_to_a_private_address_is_refused(address: str, is_tunnel: bool) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return [address]

    async with way_out(HOST, opened=(), resolve=resolve) as way:
        heard = await way.ask(f"CONNECT {HOST}:443" if is_tunnel else f"GET http://{HOST}/")

    assert (heard.status, heard.reason) == (403, "private-address")
    assert b"private_networks" in heard.body
    assert way.decisions == [NetworkDecision(HOST, 443 if is_tunnel else 80, False, "private-address")]


async def test_a_name_is_looked_up_once_and_the_checked_address_is_connected_to(peer: Peer) -> None:
    answers = [["127.0.0.1"], ["127.0.0.9"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async with (
        serving(host="127.0.0.9", port=peer.port) as victim,
        way_out(HOST, opened=["127.0.0.1/32"], resolve=rebinding, ports=[peer.port]) as way,
    ):
        first = await way.ask(f"GET {peer.url('/', HOST)}")
        second = await way.ask(f"GET {peer.url('/', HOST)}")

    assert (first.status, second.status, second.reason) == (200, 403, "private-address")
    assert (peer.connections, victim.connections, answers) == (1, 0, [])


async def test_the_next_checked_address_is_tried_and_never_one_that_is_not_checked(peer: Peer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1", "127.0.0.8", "127.0.0.1"]

    async with way_out(HOST, resolve=resolve, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}")

    assert heard.body == b"hello"


async def test_a_redirect_is_handed_back_and_not_followed(peer: Peer) -> None:
    async with serving() as private:
        peer.pages["/"] = redirect(private.url("/admin"))
        async with way_out(HOST, ports=[peer.port, private.port]) as way:
            heard = await way.ask(f"GET {peer.url('/', HOST)}")
            followed = await way.ask(f"GET {heard.headers['location']}")

    assert (heard.status, followed.status, private.connections) == (302, 403, 0)


async def test_a_host_that_does_not_answer_is_no_refusal(peer: Peer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        if host == "gone.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return ["127.0.0.7"]

    async with way_out("*.example", resolve=resolve, ports=[peer.port]) as way:
        unknown = await way.ask(f"CONNECT gone.example:{peer.port}")
        closed = await way.ask(f"GET {peer.url('/', HOST)}")

    assert [(heard.status, heard.reason) for heard in (unknown, closed)] == [
        (502, "unknown-host"),
        (502, "unreachable"),
    ]
    assert way.decisions == [
        NetworkDecision("gone.example", peer.port, True, "unknown-host"),
        NetworkDecision(HOST, peer.port, True, "unreachable"),
    ]


async def test_only_tls_for_the_host_of_the_tunnel_goes_through_it(
    secure: Peer, certificate: certificates.Certificate
) -> None:
    other = ssl.create_default_context()
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    async with way_out(HOST, ports=[secure.port], https=secure.port) as way:
        for name in ("other.example", None):
            opened, reader, writer = await way.connect(f"{HOST}:{secure.port}")
            assert opened.status == 200
            with pytest.raises((ssl.SSLError, OSError)):
                async with asyncio.timeout(GUARD):
                    await hello(reader, writer, other, name)
            writer.close()

    assert way.decisions == [NetworkDecision(HOST, secure.port, False, "sni-mismatch")] * 2
    assert secure.seen == []


async def test_a_listed_address_is_reached_by_tls_without_a_name(secure: Peer) -> None:
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    async with way_out("127.0.0.1", ports=[secure.port], https=secure.port) as way:
        for name in (None, HOST):
            _, reader, writer = await way.connect(f"127.0.0.1:{secure.port}")
            with suppress(ConnectionError):
                async with asyncio.timeout(GUARD):
                    await hello(reader, writer, anybody, name)
            writer.close()

    assert [(one.is_allowed, one.reason) for one in way.decisions] == [(True, "allowed"), (False, "sni-mismatch")]


async def hello(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str | None
) -> None:
    """A handshake by hand, since the loop always says a name."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    while True:
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            data = await reader.read(65536)
            if not data:
                raise ConnectionResetError from None
            incoming.write(data)


async def test_the_name_in_tls_may_be_in_upper_case_and_its_hello_in_pieces(
    secure: Peer, certificate: certificates.Certificate
) -> None:
    context = trusting(certificate)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="API.example")
    async with way_out(HOST, ports=[secure.port], https=secure.port) as way:
        _, reader, writer = await way.connect(f"{HOST.upper()}.:{secure.port}")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        record = outgoing.read()
        for piece in cut_in_records(record):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(GUARD):
            answer = await reader.read(1)
        writer.close()

    assert answer == b"\x16"  # the other side shakes hands
    assert way.decisions == [NetworkDecision(HOST, secure.port, True, "allowed")]


def cut_in_records(record: bytes) -> list[bytes]:
    """The same hello in three records."""
    head, body = record[:3], record[5:]
    third = len(body) // 3
    parts = [body[:third], body[third : 2 * third], body[2 * third :]]
    return [head + len(part).to_bytes(2, "big") + part for part in parts]


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"GET / HTTP/1.1\r\nHost: api.example\r\n\r\n", b"\x16\x03\x01\xff\xff", b"", b"\x16"],
    ids=["ssh", "http", "huge-record", "nothing", "one-byte"],
)
async def test_what_is_no_tls_is_cut_where_only_tls_may_pass(secure: Peer, said: bytes) -> None:
    async with way_out(HOST, ports=[secure.port], https=secure.port) as way:
        opened, reader, writer = await way.connect(f"{HOST}:{secure.port}")
        writer.write(said)
        writer.write_eof()
        async with asyncio.timeout(GUARD):
            rest = await read_to_the_end(reader)
        writer.close()

    assert (opened.status, rest) == (200, b"")
    assert way.decisions == [NetworkDecision(HOST, secure.port, False, "no-tls")]
    assert secure.seen == []


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_tunnel_to_another_port_takes_any_bytes_and_closes_one_way_at_a_time() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read()  # to the end of what the client says
        writer.write(b"heard " + said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, way_out(HOST, ports=[port]) as way:
        _, reader, writer = await way.connect(f"{HOST}:{port}")
        writer.write(b"one two")
        writer.write_eof()
        async with asyncio.timeout(GUARD):
            said = await reader.read()
        writer.close()

    assert said == b"heard one two"


async def test_who_does_not_show_the_token_is_sent_away_and_nothing_is_told(peer: Peer) -> None:
    def basic(text: str) -> str:
        return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}"

    async with way_out(HOST, ports=[peer.port], token="t0ken") as way:
        start = f"GET {peer.url('/', HOST)}"
        bad = [
            "X: y",
            basic("any:other"),
            basic("t0ken"),
            "Proxy-Authorization: Bearer t0ken",
            basic("any:t0ken") + "=x",
        ]
        refused = [await way.ask(start, header) for header in bad]
        twice = await way.ask(start, basic("a:t0ken"), basic("a:t0ken"))
        tunnel = await way.ask(f"CONNECT {HOST}:{peer.port}")
        assert way.decisions == []
        allowed = await way.ask(start, basic("any:t0ken"))

    assert {heard.status for heard in [*refused, twice, tunnel]} == {407}
    assert refused[0].headers["proxy-authenticate"] == 'Basic realm="toolcrib"'
    assert allowed.status == 200
    [seen] = peer.seen
    assert "proxy-authorization" not in seen.headers


async def test_what_is_for_the_proxy_only_goes_no_further(peer: Peer) -> None:
    peer.pages["/"] = reply(b"hello", "200 OK", "Keep-Alive: timeout=5", "Connection: x-hop", "X-Hop: 1", "X-Kept: 2")
    async with way_out(HOST, ports=[peer.port]) as way:
        heard = await way.ask(
            f"GET {peer.url('/', HOST)}",
            "Host: elsewhere.example",
            "Connection: keep-alive, X-Secret-Hop",
            "X-Secret-Hop: 1",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic eDp5",
            "TE: trailers",
            "Upgrade: websocket",
            "X-Kept: 1",
        )

    assert peer.seen[0].headers == {"host": f"{HOST}:{peer.port}", "x-kept": "1", "connection": "close"}
    assert heard.headers == {"x-kept": "2", "content-length": "5", "connection": "close"}


async def test_more_connections_than_may_be_wait_for_their_turn(peer: Peer) -> None:
    async with way_out(HOST, ports=[peer.port], limits=ProxyLimits(connections=2)) as way:
        idle = [await way.open() for _ in range(2)]
        waiting = asyncio.create_task(way.ask(f"GET {peer.url('/', HOST)}"))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert peer.connections == 0
        idle.pop()[1].close()
        heard = await waiting
        for _, writer in idle:
            writer.close()

    assert heard.status == 200


async def test_a_request_for_the_proxy_itself_is_told_how_to_use_it() -> None:
    async with way_out(HOST) as way:
        heard = await way.ask("GET /status", f"Host: {HOST}")
        star = await way.ask("OPTIONS *", f"Host: {HOST}")
        https = await way.ask(f"GET https://{HOST}/")

    assert (heard.status, heard.reason) == (400, "no-proxy-request")
    assert b"http_proxy" in heard.body
    assert (star.status, star.reason) == (403, "bad-host")
    assert (https.status, https.reason) == (403, "bad-host")
    assert b"CONNECT" in https.body


async def test_names_are_read_the_same_by_judge_and_wire(peer: Peer) -> None:
    asked = list[str]()

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return await everywhere(host, port)

    async with way_out(HOST, "xn--bcher-kva.example", ports=[peer.port], resolve=resolve) as way:
        for name in ("API.Example", "api.example.", "bücher.example", "BÜCHER.example."):
            heard = hear(await way.send(f"GET http://{name}:{peer.port}/ HTTP/1.1\r\n\r\n".encode()))
            assert heard.status == 200, name

    assert asked == [HOST, HOST, "xn--bcher-kva.example", "xn--bcher-kva.example"]
    assert [seen.headers["host"].partition(":")[0] for seen in peer.seen] == asked
    assert [decision.host for decision in way.decisions] == asked
