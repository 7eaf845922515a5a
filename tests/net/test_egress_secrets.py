"""Secrets in the egress proxy: a value goes to its host and nowhere else, whatever the host makes of it."""

import asyncio
import base64
import gzip
import json
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from app.core.network_policy import BoundSecret
from app.core.sandbox import NetworkDecision
from tests.support import certificates
from tests.support.egress_client import Heard, Way, way_out
from tests.support.http_servers import Peer, Reply, Seen, redirect, reply, serving

HOST = "api.example"
VALUE = 'c4nary/va+lue=of the "key"'
MARK = "tsec_0123456789abcdef"
PLACED = (BoundSecret("API_KEY", HOST, MARK),)
FORMS = [
    VALUE,
    base64.b64encode(VALUE.encode()).decode(),
    base64.b64encode(f"user:{VALUE}".encode()).decode(),
    quote(VALUE, safe=""),
    json.dumps(VALUE)[1:-1],
    VALUE.encode().hex(),
]


def find(owner: str, name: str) -> tuple[tuple[str, ...], str] | None:
    known = {
        "API_KEY": ((), VALUE),
        "BOUND": ((HOST,), "bound-value"),
        "WIDE": (("*.below.example",), "wide-value"),
        "BROKEN": ((), "two\r\nlines: of it"),
        "LONG": ((), "x" * 10_000),
    }
    return known.get(name) if owner == "anna" else None


def echo(request: Seen, writer: asyncio.StreamWriter) -> bytes:
    """Repeats everything it was told, in several forms."""
    said = json.dumps(request.headers) + "\n".join(FORMS) + "".join(request.headers.values())
    return reply(
        said.encode(), "200 OK", f"X-Echo: {request.headers.get('authorization', '-')}", f"Set-Cookie: {VALUE}"
    )


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": echo}) as peer:
        yield peer


@pytest.fixture
def certificate(tmp_path: Path) -> certificates.Certificate:
    return certificates.make(tmp_path, HOST)


@pytest.fixture
async def secure(certificate: certificates.Certificate) -> AsyncIterator[Peer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    async with serving({"/": echo, "/v1/things": echo}, tls=context) as peer:
        yield peer


def is_clean(way: Way, heard: Heard, log: pytest.LogCaptureFixture) -> bool:
    """Whether the value is nowhere but with its host."""
    everything = heard.raw.decode("latin-1") + repr(way.decisions) + log.text
    return not any(form in everything for form in FORMS)


@pytest.mark.parametrize(
    ("header", "arrives"),
    [
        (f"Authorization: Bearer {MARK}", f"Bearer {VALUE}"),
        (f"authorization: token {MARK}", f"token {VALUE}"),
        (
            f"Authorization: Basic {base64.b64encode(f'user:{MARK}'.encode()).decode()}",
            f"Basic {base64.b64encode(f'user:{VALUE}'.encode()).decode()}",
        ),
        (
            f"Authorization: basic {base64.b64encode(f'{MARK}:'.encode()).decode()}",
            f"basic {base64.b64encode(f'{VALUE}:'.encode()).decode()}",
        ),
    ],
    ids=["bearer", "token", "password", "user"],
)
async def test_a_placeholder_in_a_header_becomes_the_value_for_its_host(
    peer: Peer, caplog: pytest.LogCaptureFixture, header: str, arrives: str
) -> None:
    caplog.set_level(logging.DEBUG)
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}", header)

    assert peer.seen[0].headers["authorization"] == arrives
    assert heard.status == 200
    assert is_clean(way, heard, caplog)
    assert MARK.encode() in heard.body
    assert heard.headers["set-cookie"] == MARK
    assert way.decisions == [NetworkDecision(HOST, peer.port, True, "allowed")]


async def test_a_placeholder_goes_to_other_hosts_as_it_is(peer: Peer) -> None:
    async with way_out("*.example", secrets=PLACED, find=find, ports=[peer.port]) as way:
        await way.ask(f"GET {peer.url('/', 'other.example')}", f"X-Key: {MARK}", "Accept-Encoding: gzip")

    assert peer.seen[0].headers["x-key"] == MARK
    assert peer.seen[0].headers["accept-encoding"] == "gzip"


async def test_a_placeholder_is_replaced_in_headers_only(peer: Peer) -> None:
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        await way.ask(
            f"POST {peer.url(f'/?key={MARK}', HOST)}",
            f"Content-Length: {len(MARK)}",
            f"Host: {MARK}",
            body=MARK.encode(),
        )

    [seen] = peer.seen
    assert (seen.target, seen.body) == (f"/?key={MARK}", MARK.encode())
    assert VALUE not in str(seen)


async def test_an_answer_is_scrubbed_also_when_the_request_did_not_carry_the_value(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}", "Range: bytes=0-3", "Accept-Encoding: gzip, br")

    assert is_clean(way, heard, caplog)
    assert heard.body.count(MARK.encode()) >= len(FORMS)
    # A part of it, or a compressed one, could not be scrubbed.
    assert peer.seen[0].headers["accept-encoding"] == "identity"
    assert "range" not in peer.seen[0].headers


@pytest.mark.parametrize("size", [1, 2, 7, 64])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_value_is_found_where_pieces_meet(peer: Peer, size: int, is_chunked: bool) -> None:
    encoded = base64.b64encode(VALUE.encode()).decode()
    whole = f"before {VALUE} between {VALUE[:-1]} and {encoded} {VALUE[:5]}".encode()

    async def drop(request: Seen, writer: asyncio.StreamWriter) -> bytes:
        framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(whole)}"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        for at in range(0, len(whole), size):
            piece = whole[at : at + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await writer.drain()
            await asyncio.sleep(0)
        return b"0\r\n\r\n" if is_chunked else b""

    peer.pages["/"] = drop
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', HOST)}")

    # The last characters of base64 depend on what comes behind, too.
    assert heard.body == f"before {MARK} between {VALUE[:-1]} and {MARK}{encoded[-2:]} {VALUE[:5]}".encode()


async def test_a_compressed_answer_is_read_before_it_is_scrubbed(peer: Peer) -> None:
    body = gzip.compress(f"so {VALUE} it is".encode())
    pages: dict[str, bytes | Reply] = {
        "/gzip": reply(body, "200 OK", "Content-Encoding: gzip"),
        "/cut": reply(body[:-4], "200 OK", "Content-Encoding: gzip"),
        "/br": reply(body, "200 OK", "Content-Encoding: br"),
    }
    peer.pages.update(pages)
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/gzip', HOST)}")
        other = await way.ask(f"GET {peer.url('/br', HOST)}")
        with pytest.raises((AssertionError, ValueError, ConnectionResetError)):  # its last chunk never comes
            await way.ask(f"GET {peer.url('/cut', HOST)}")

    assert (heard.status, heard.body) == (200, f"so {MARK} it is".encode())
    assert "content-encoding" not in heard.headers
    assert (other.status, other.reason) == (502, "upstream-broken")


async def test_a_client_of_old_gets_its_answer_without_chunks(peer: Peer) -> None:
    peer.pages["/"] = reply(VALUE.encode())
    async with way_out(HOST, secrets=PLACED, find=find, ports=[peer.port]) as way:
        raw = await way.send(f"GET {peer.url('/', HOST)} HTTP/1.0\r\n\r\n".encode())

    assert raw == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + MARK.encode()


@pytest.mark.parametrize(
    ("placed", "status", "reason"),
    [
        (BoundSecret("BOUND", "*.example", MARK), 403, "secret-not-for-host"),
        (BoundSecret("MISSING", "*.example", MARK), 502, "secret-unavailable"),
        (BoundSecret("BROKEN", "*.example", MARK), 502, "secret-unavailable"),
        (BoundSecret("LONG", "*.example", MARK), 502, "secret-unavailable"),
    ],
    ids=["other-host", "missing", "line-break", "long"],
)
async def test_a_secret_that_cannot_go_along_keeps_the_request_from_going(
    peer: Peer, placed: BoundSecret, status: int, reason: str
) -> None:
    async with way_out("*.example", secrets=(placed,), find=find, ports=[peer.port]) as way:
        heard = await way.ask(f"GET {peer.url('/', 'other.example')}", f"X-Key: {MARK}")

    assert (heard.status, heard.reason) == (status, reason)
    assert way.decisions == [NetworkDecision("other.example", peer.port, status == 502, reason)]
    assert peer.connections == 0


async def test_an_alias_asks_by_tls_with_the_secret(
    secure: Peer, certificate: certificates.Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    trust = ssl.create_default_context(cafile=str(certificate.cert))
    async with way_out(HOST, secrets=PLACED, find=find, ports=[secure.port], https=secure.port, trust=trust) as way:
        bare = await way.ask("POST http://secrets.internal/API_KEY/v1/things?a=1", "Content-Length: 2", body=b"{}")
        named = await way.ask("GET http://secrets.internal/API_KEY/v1/things", f"X-Api-Key: {MARK}")
        dummy = await way.ask("GET http://secrets.internal/API_KEY", "Authorization: Bearer dummy")
        direct = await way.ask("GET /API_KEY/", "Host: secrets.internal")

    assert [heard.status for heard in (bare, named, dummy, direct)] == [200] * 4
    assert [seen.target for seen in secure.seen] == ["/v1/things?a=1", "/v1/things", "/", "/"]
    assert [seen.headers.get("authorization") for seen in secure.seen] == [
        f"Bearer {VALUE}",
        None,
        f"Bearer {VALUE}",
        f"Bearer {VALUE}",
    ]
    assert secure.seen[0].body == b"{}"
    assert secure.seen[1].headers["x-api-key"] == VALUE
    assert secure.seen[0].headers["host"] == f"{HOST}:{secure.port}"
    assert all(is_clean(way, heard, caplog) for heard in (bare, named, dummy, direct))
    assert way.decisions == [NetworkDecision(HOST, secure.port, True, "allowed")] * 4


async def test_an_alias_does_not_go_where_the_certificate_is_another_or_a_policy_says_no(
    secure: Peer, certificate: certificates.Certificate
) -> None:
    trust = ssl.create_default_context(cafile=str(certificate.cert))
    placed = (BoundSecret("API_KEY", "wrong.example", MARK), BoundSecret("BOUND", "elsewhere.org", "tsec_other"))
    async with way_out(
        "*.example", secrets=placed, find=find, ports=[secure.port], https=secure.port, trust=trust
    ) as way:
        wrong = await way.ask("GET http://secrets.internal/API_KEY/")
        unlisted = await way.ask("GET http://secrets.internal/BOUND/")
        unknown = await way.ask("GET http://secrets.internal/OTHER/")
        tunnel = await way.ask("CONNECT secrets.internal:443")

    assert (wrong.status, wrong.reason) == (502, "tls-failed")
    assert (unlisted.status, unlisted.reason) == (403, "blocked-by-allowlist")
    assert (unknown.status, unknown.reason) == (404, "unknown-secret")
    assert b"API_KEY, BOUND" in unknown.body
    assert (tunnel.status, tunnel.reason) == (403, "alias-needs-http")
    assert secure.seen == []
    assert way.decisions == [
        NetworkDecision("wrong.example", secure.port, True, "tls-failed"),
        NetworkDecision("elsewhere.org", secure.port, False, "blocked-by-allowlist"),
        NetworkDecision("secrets.internal", 80, False, "unknown-secret"),
        NetworkDecision("secrets.internal", 443, False, "alias-needs-http"),
    ]


async def test_redirects_of_an_alias_stay_with_it_as_long_as_the_host_does(
    secure: Peer, certificate: certificates.Certificate
) -> None:
    trust = ssl.create_default_context(cafile=str(certificate.cert))
    told = {
        "/relative": ("/next?a=1", "http://secrets.internal/API_KEY/next?a=1"),
        "/absolute": (secure.url("/next", HOST, "https"), "http://secrets.internal/API_KEY/next"),
        "/other": ("https://other.example/next", "https://other.example/next"),
        "/plain": (f"http://{HOST}/next", f"http://{HOST}/next"),
        "/value": (f"/next?key={quote(VALUE, safe='')}", f"http://secrets.internal/API_KEY/next?key={MARK}"),
        "/broken": ("https://[", "https://["),
    }
    secure.pages |= {path: redirect(location) for path, (location, _) in told.items()}
    async with way_out(HOST, secrets=PLACED, find=find, ports=[secure.port], https=secure.port, trust=trust) as way:
        heard = {path: await way.ask(f"GET http://secrets.internal/API_KEY{path}") for path in told}

    assert {path: one.headers["location"] for path, one in heard.items()} == {
        path: expected for path, (_, expected) in told.items()
    }


async def test_an_alias_of_many_hosts_names_the_host(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "one.below.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)
    trust = ssl.create_default_context(cafile=str(made.cert))
    placed = (BoundSecret("WIDE", "*.below.example", MARK),)
    async with (
        serving({"/": redirect("/x"), "/two": redirect("https://two.below.example/")}, tls=context) as peer,
        way_out("*.below.example", secrets=placed, find=find, ports=[peer.port], https=peer.port, trust=trust) as way,
    ):
        heard = await way.ask("GET http://secrets.internal/WIDE/ONE.below.example/?q")
        outside = await way.ask("GET http://secrets.internal/WIDE/below.example/")
        evil = await way.ask("GET http://secrets.internal/WIDE/evil.example/")

    assert heard.headers["location"] == "http://secrets.internal/WIDE/one.below.example/x"
    assert [seen.target for seen in peer.seen] == ["/?q"]
    assert peer.seen[0].headers["authorization"] == "Bearer wide-value"
    assert {(one.status, one.reason) for one in (outside, evil)} == {(404, "alias-needs-host")}
