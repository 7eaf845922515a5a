"""The wire out, against real servers on loopback."""

import asyncio
import base64
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from app.core.errors import (
    CallError,
    InvalidArgs,
    NetworkError,
    NetworkTimeout,
    PermissionDenied,
    ToolUnavailable,
)
from app.core.network_policy import BoundSecret, NetworkPolicy, SessionSecrets
from app.core.ports import HttpRequest, HttpResponse, SecretUse
from app.net.outbound import CheckedOutbound
from tests.support import certificates
from tests.support.http_servers import Peer, Seen, redirect, reply, serving

LOOPBACK = ["127.0.0.0/8"]
SECRETS = {
    "TOKEN": ((), "s3cret/va+lue"),
    "BOUND": (("api.example", "*.below.example"), "bound-value"),
    "BROKEN": ((), "two\r\nlines"),
}


def find(owner: str, name: str) -> tuple[tuple[str, ...], str] | None:
    return SECRETS.get(name) if owner == "anna" else None


async def everywhere(host: str, port: int) -> list[str]:
    """Every name of the tests is on this machine."""
    return ["127.0.0.1"]


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving({"/": reply(b"hello", "200 OK", "Content-Type: text/plain")}) as peer:
        yield peer


@pytest.fixture
def out() -> CheckedOutbound:
    return CheckedOutbound(find, private_networks=LOOPBACK, resolve=everywhere)


async def get(out: CheckedOutbound, url: str, **more: object) -> HttpResponse:
    async with asyncio.timeout(20):
        return await out.send(HttpRequest(method="GET", url=url, **more), owner="anna")  # type: ignore[arg-type]


async def test_a_request_arrives_as_it_was_said_and_its_answer_comes_back(out: CheckedOutbound, peer: Peer) -> None:
    request = HttpRequest(method="post", url=peer.url("/?a=1", "api.example"), headers={"X-One": "ä"}, body=b"{}")

    answer = await out.send(request, owner="anna")

    assert answer == HttpResponse(
        status=200,
        headers={"content-length": "5", "content-type": "text/plain"},
        body=b"hello",
        url=peer.url("/?a=1", "api.example"),
    )
    [seen] = peer.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/?a=1", b"{}")
    assert seen.headers.pop("user-agent").startswith("toolcrib/")
    assert seen.headers == {
        "host": f"api.example:{peer.port}",
        "connection": "close",
        "accept": "*/*",
        "x-one": "ä",
        "accept-encoding": "gzip, deflate",
        "content-length": "2",
    }


async def test_private_addresses_are_closed_unless_the_operator_opens_them(peer: Peer) -> None:
    closed = CheckedOutbound(find, resolve=everywhere)

    for url in (peer.url(), peer.url(host="api.example"), peer.url(host="localhost")):
        with pytest.raises(NetworkError, match="private_networks") as refused:
            await get(closed, url)
        assert not refused.value.retryable
    assert peer.connections == 0


async def test_a_name_that_changes_its_address_is_checked_each_time_and_looked_up_once_per_hop() -> None:
    answers = [["127.0.0.1"], ["127.0.0.9"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)

    pages = {"/": redirect("/again")}
    async with serving(pages) as friend, serving(host="127.0.0.9", port=friend.port) as victim:
        out = CheckedOutbound(find, private_networks=["127.0.0.1/32"], resolve=rebinding)
        with pytest.raises(NetworkError, match="private_networks"):
            await get(out, friend.url("/", "rebind.example"))

    assert [seen.target for seen in friend.seen] == ["/"]
    assert victim.connections == 0
    assert answers == []


async def test_the_next_address_is_tried_when_one_cannot_be_connected_to(peer: Peer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.8", "10.0.0.1", "127.0.0.1"]

    answer = await get(CheckedOutbound(find, private_networks=LOOPBACK, resolve=resolve), peer.url(host="api.example"))

    assert answer.body == b"hello"


async def test_proxies_of_the_environment_are_not_used(
    out: CheckedOutbound, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        answer = await get(out, peer.url(host="api.example"))

    assert answer.status == 200
    assert proxy.connections == 0


async def test_no_cookie_and_no_connection_is_kept(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = reply(b"", "200 OK", "Set-Cookie: id=1; Path=/")

    for _ in range(2):
        await get(out, peer.url())

    assert [("cookie" in seen.headers) for seen in peer.seen] == [False, False]
    assert peer.connections == 2


@pytest.mark.parametrize(
    "request_",
    [
        HttpRequest(method="GET", url="ftp://api.example/"),
        HttpRequest(method="GET", url="http://user:password@api.example/"),
        HttpRequest(method="GET", url="http://2130706433/"),
        HttpRequest(method="GET", url="http://[fe80::1%25lo]/"),
        HttpRequest(method="GET /x HTTP/1.1\r\n", url="http://api.example/"),
        HttpRequest(method="GET", url="http://api.example/", headers={"X": "a\r\nY: b"}),
        HttpRequest(method="GET", url="http://api.example/", headers={"X": "a\0b"}),
        HttpRequest(method="GET", url="http://api.example/", headers={"X Y": "a"}),
        HttpRequest(method="GET", url="http://api.example/", headers={"Host": "evil.example"}),
        HttpRequest(method="GET", url="http://api.example/", headers={"content-length": "5"}),
        HttpRequest(method="GET", url="http://api.example/", headers={"Transfer-Encoding": "chunked"}),
        HttpRequest(method="GET", url="http://api.example/", secrets=(SecretUse("TOKEN", name="a b"),)),
        HttpRequest(method="GET", url="http://api.example/", secrets=(SecretUse("TOKEN", name="Host"),)),
    ],
)
async def test_what_cannot_be_a_request_is_refused_before_anything_is_sent(
    out: CheckedOutbound, request_: HttpRequest
) -> None:
    with pytest.raises(InvalidArgs):
        await out.send(request_, owner="anna")


# Redirects


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "GET", "GET"),
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (302, "PUT", "PUT"),
        (303, "POST", "GET"),
        (303, "DELETE", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
    ],
)
async def test_a_redirect_changes_the_method_as_browsers_do(
    out: CheckedOutbound, peer: Peer, status: int, method: str, becomes: str
) -> None:
    peer.pages["/start"] = redirect("/?next", status)
    if method == "HEAD":
        peer.pages["/start"] = f"HTTP/1.1 {status} Moved\r\nLocation: /?next\r\n\r\n".encode()
        peer.pages["/"] = b"HTTP/1.1 200 OK\r\n\r\n"
    body = b"data" if method in ("POST", "PUT", "PATCH") else None
    request = HttpRequest(method=method, url=peer.url("/start"), headers={"Content-Type": "text/x"}, body=body)

    answer = await out.send(request, owner="anna")

    assert answer.url == peer.url("/?next")
    last = peer.seen[-1]
    assert (last.method, last.body) == (becomes, body if becomes == method and body else b"")
    assert ("content-type" in last.headers) == (becomes == method)


async def test_after_five_redirects_no_more_are_followed(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = redirect("/")

    with pytest.raises(NetworkError, match="5 redirects") as failed:
        await get(out, peer.url())

    assert not failed.value.retryable
    assert len(peer.seen) == 6


@pytest.mark.parametrize(
    "location", ["ftp://api.example/", "javascript:alert(1)", "http://[::1", "http://a:b@c/", "http://127.1/"]
)
async def test_a_redirect_to_what_is_no_url_of_the_web_is_an_error(
    out: CheckedOutbound, peer: Peer, location: str
) -> None:
    peer.pages["/"] = redirect(location)

    with pytest.raises(NetworkError, match="an invalid URL"):
        await get(out, peer.url())


async def test_a_redirect_without_a_place_is_the_answer(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = reply(b"nowhere", "302 Found")

    answer = await get(out, peer.url())

    assert (answer.status, answer.body) == (302, b"nowhere")


async def test_a_redirect_to_a_private_address_is_refused(peer: Peer) -> None:
    out = CheckedOutbound(find, private_networks=["127.0.0.1/32"], resolve=everywhere)
    async with serving(host="127.0.0.9") as inside:
        peer.pages["/"] = redirect(inside.url("/", "127.0.0.9"))
        with pytest.raises(NetworkError, match="private_networks"):
            await get(out, peer.url(host="api.example"))

    assert inside.connections == 0


async def test_another_host_sees_no_secret_and_no_header_that_could_be_one(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/start"] = redirect(peer.url("/", "other.example"), 307)
    headers = {
        "Authorization": "Bearer x",
        "X-Api-Key": "k",
        "Cookie": "c=d",
        "Accept": "text/x",
        "Content-Type": "a/b",
    }
    secrets = (
        SecretUse("TOKEN", name="X-Secret"),
        SecretUse("TOKEN", "query", "key"),
        SecretUse("TOKEN", "cookie", "s"),
    )
    request = HttpRequest(method="POST", url=peer.url("/start"), headers=headers, secrets=secrets[:2], body=b"b")

    answer = await out.send(request, owner="anna")

    first, second = peer.seen
    assert first.headers["x-secret"] == "s3cret/va+lue"
    assert first.target == "/start?key=s3cret%2Fva%2Blue"
    assert second.target == "/"
    assert {name: second.headers.get(name) for name in ("accept", "content-type", "accept-encoding")} == {
        "accept": "text/x",
        "content-type": "a/b",
        "accept-encoding": "gzip, deflate",
    }
    assert not {"authorization", "x-api-key", "cookie", "x-secret"} & set(second.headers)
    assert answer.url == peer.url("/", "other.example")


async def test_another_port_is_another_host_for_secrets(out: CheckedOutbound, peer: Peer) -> None:
    async with serving({"/": reply(b"")}) as other:
        peer.pages["/"] = redirect(other.url(host="api.example"))
        url = peer.url(host="api.example")
        await out.send(HttpRequest(method="GET", url=url, secrets=(SecretUse("TOKEN"),)), owner="anna")

    assert "authorization" in peer.seen[0].headers
    assert "authorization" not in other.seen[0].headers


async def test_the_same_host_gets_the_secret_again_and_the_url_shown_never_holds_it(
    out: CheckedOutbound, peer: Peer
) -> None:
    def repeat(seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        return redirect(f"/?{seen.target.partition('?')[2]}&page=2")

    peer.pages["/start"] = repeat
    request = HttpRequest(method="GET", url=peer.url("/start?q=1"), secrets=(SecretUse("TOKEN", "query", "key"),))

    answer = await out.send(request, owner="anna")

    assert peer.seen[1].query == [("q", "1"), ("page", "2"), ("key", "s3cret/va+lue")]
    assert answer.url == peer.url("/?q=1&page=2")


async def test_before_another_host_is_followed_to_somebody_has_to_agree(out: CheckedOutbound, peer: Peer) -> None:
    asked = []

    async def agree(host: str) -> None:
        asked.append(host)
        if host == "evil.example":
            raise PermissionDenied("no")

    peer.pages |= {
        "/start": redirect("/middle"),
        "/middle": redirect(peer.url("/then", "good.example")),
        "/then": redirect(peer.url("/", "evil.example")),
    }
    with pytest.raises(PermissionDenied):
        await out.send(HttpRequest(method="GET", url=peer.url("/start", "api.example")), owner="anna", agree=agree)

    assert asked == ["good.example", "evil.example"]
    assert [seen.target for seen in peer.seen] == ["/start", "/middle", "/then"]


async def test_while_somebody_thinks_no_time_passes_for_the_request(out: CheckedOutbound, peer: Peer) -> None:
    async def agree(host: str) -> None:
        thought = asyncio.Event()
        asyncio.get_running_loop().call_later(1.1, thought.set)
        await thought.wait()

    peer.pages["/start"] = redirect(peer.url("/", "other.example"))
    request = HttpRequest(method="GET", url=peer.url("/start", "api.example"), timeout=1)

    assert (await out.send(request, owner="anna", agree=agree)).body == b"hello"


# Policies


async def test_every_hop_has_to_be_allowed_by_every_policy(peer: Peer) -> None:
    operator = NetworkPolicy("allowlist", ("*.example",))
    session = NetworkPolicy("allowlist", ("api.example",))
    out = CheckedOutbound(find, policy=operator, private_networks=LOOPBACK, resolve=everywhere)
    peer.pages["/out"] = redirect(peer.url("/", "other.example"))

    async def send(path: str, host: str, *policies: NetworkPolicy | None) -> HttpResponse:
        return await out.send(HttpRequest(method="GET", url=peer.url(path, host)), owner="anna", policies=policies)

    assert (await send("/", "api.example", None, session)).status == 200
    assert (await send("/out", "api.example")).status == 200
    for path, host, policy in (
        ("/", "api.test", None),
        ("/", "other.example", session),
        ("/out", "api.example", session),
        ("/", "api.example", NetworkPolicy("disabled")),
    ):
        before = [seen for seen in peer.seen if seen.target == "/"]
        with pytest.raises(PermissionDenied, match="network policy") as denied:
            await send(path, host, policy)
        assert denied.value.details == {"host": "other.example" if path == "/out" else host}
        assert [seen for seen in peer.seen if seen.target == "/"] == before


# Secrets


@pytest.mark.parametrize(
    ("use", "header", "value"),
    [
        (SecretUse("TOKEN", name="X-Key"), "x-key", "s3cret/va+lue"),
        (SecretUse("TOKEN", form="bearer"), "authorization", "Bearer s3cret/va+lue"),
        (SecretUse("TOKEN", form="basic"), "authorization", "Basic czNjcmV0L3ZhK2x1ZQ=="),
        (SecretUse("TOKEN", "cookie", "sid"), "cookie", "a=b; sid=s3cret/va+lue"),
    ],
)
async def test_a_secret_goes_where_it_should_in_its_form(
    out: CheckedOutbound, peer: Peer, use: SecretUse, header: str, value: str
) -> None:
    headers = {"Cookie": "a=b", "AUTHORIZATION": "given"}

    await out.send(HttpRequest(method="GET", url=peer.url(), headers=headers, secrets=(use,)), owner="anna")

    assert peer.seen[0].headers[header] == value


async def test_a_secret_in_the_query_is_there_once_and_is_not_shown(out: CheckedOutbound, peer: Peer) -> None:
    use = SecretUse("TOKEN", "query", "key")

    answer = await out.send(HttpRequest(method="GET", url=peer.url("/?key=mine&a=b"), secrets=(use,)), owner="anna")

    assert peer.seen[0].query == [("a", "b"), ("key", "s3cret/va+lue")]
    assert answer.url == peer.url("/?a=b")


@pytest.mark.parametrize("host", ["api.example", "a.below.example"])
async def test_a_secret_goes_to_its_domains(out: CheckedOutbound, peer: Peer, host: str) -> None:
    await out.send(HttpRequest(method="GET", url=peer.url("/", host), secrets=(SecretUse("BOUND"),)), owner="anna")

    assert peer.seen[0].headers["authorization"] == "bound-value"


@pytest.mark.parametrize("host", ["other.example", "below.example", "api.example.evil.example", "127.0.0.1"])
async def test_a_secret_goes_nowhere_else(out: CheckedOutbound, peer: Peer, host: str) -> None:
    with pytest.raises(PermissionDenied, match="BOUND") as denied:
        await out.send(HttpRequest(method="GET", url=peer.url("/", host), secrets=(SecretUse("BOUND"),)), owner="anna")

    assert "bound-value" not in str(denied.value.as_dict())
    assert peer.connections == 0


@pytest.mark.parametrize(("owner", "name"), [("anna", "MISSING"), ("bert", "TOKEN")])
async def test_a_secret_the_owner_does_not_have_is_named(
    out: CheckedOutbound, peer: Peer, owner: str, name: str
) -> None:
    with pytest.raises(ToolUnavailable, match=name):
        await out.send(HttpRequest(method="GET", url=peer.url(), secrets=(SecretUse(name),)), owner=owner)

    assert peer.connections == 0


@pytest.mark.parametrize("into", ["header", "cookie"])
async def test_a_secret_that_would_break_the_request_is_not_sent(out: CheckedOutbound, peer: Peer, into: str) -> None:
    use = SecretUse("BROKEN", into, "X-Key")  # type: ignore[arg-type]

    with pytest.raises(ToolUnavailable, match="BROKEN") as refused:
        await out.send(HttpRequest(method="GET", url=peer.url(), secrets=(use,)), owner="anna")

    assert "lines" not in refused.value.message
    assert peer.connections == 0


# Bodies


@pytest.mark.parametrize(("size", "is_cut"), [(99, False), (100, False), (101, True), (5_000_000, True)])
async def test_a_body_is_read_up_to_its_limit(out: CheckedOutbound, peer: Peer, size: int, is_cut: bool) -> None:
    peer.pages["/"] = reply(b"x" * size)

    answer = await get(out, peer.url(), limit=100)

    assert (answer.body, answer.is_cut) == (b"x" * min(size, 100), is_cut)


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("X-GZip", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:7], mtime=0) + gzip.compress(data[7:]) + b"trailing"),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
    ],
)
async def test_a_compressed_body_is_read(
    out: CheckedOutbound, peer: Peer, encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    peer.pages["/"] = reply(encode(b"a longer text " * 9), "200 OK", f"Content-Encoding: {encoding}")

    answer = await get(out, peer.url())

    assert (answer.body, answer.is_cut) == (b"a longer text " * 9, False)


async def test_a_bomb_is_not_unpacked_beyond_the_limit(out: CheckedOutbound, peer: Peer) -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024), mtime=0)
    peer.pages["/"] = reply(bomb, "200 OK", "Content-Encoding: gzip")

    answer = await get(out, peer.url(), limit=1000)

    assert (answer.body, answer.is_cut) == (bytes(1000), True)


async def test_members_that_hold_nothing_are_not_read_for_ever(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = reply(gzip.compress(b"", mtime=0) * 20_000, "200 OK", "Content-Encoding: gzip")

    answer = await get(out, peer.url(), limit=1000)

    assert (answer.body, answer.is_cut) == (b"", True)


@pytest.mark.parametrize(
    "page",
    [
        reply(b"no gzip at all", "200 OK", "Content-Encoding: gzip"),
        reply(gzip.compress(b"x" * 999, mtime=0)[:-9], "200 OK", "Content-Encoding: gzip"),
        reply(b"what is this", "200 OK", "Content-Encoding: br"),
        reply(gzip.compress(gzip.compress(b"x"), mtime=0), "200 OK", "Content-Encoding: gzip, gzip"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot all",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
)
async def test_an_answer_that_is_none_is_a_network_error(out: CheckedOutbound, peer: Peer, page: bytes) -> None:
    peer.pages["/"] = page

    with pytest.raises(NetworkError) as failed:
        await get(out, peer.url(host="api.example"))

    assert type(failed.value) is NetworkError
    assert "api.example" in failed.value.message


async def test_who_is_not_there_refuses_and_it_may_be_tried_again(out: CheckedOutbound) -> None:
    async with serving() as gone:
        url = gone.url(host="api.example")

    with pytest.raises(NetworkError, match="refused the connection") as failed:
        await get(out, url)

    assert failed.value.retryable


# Time


async def test_the_deadline_covers_a_server_that_never_answers(out: CheckedOutbound, peer: Peer) -> None:
    async def never(seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        await asyncio.Event().wait()
        return b""

    peer.pages["/"] = never

    with pytest.raises(NetworkTimeout, match=r"within 0\.2 s") as late:
        await get(out, peer.url(host="api.example"), timeout=0.2)

    assert late.value.retryable


async def test_the_deadline_covers_a_body_that_drips_and_redirects_together(out: CheckedOutbound, peer: Peer) -> None:
    async def drip(seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
        await writer.drain()
        await asyncio.Event().wait()
        return b""

    peer.pages |= {"/start": redirect("/drip"), "/drip": drip}

    with pytest.raises(NetworkTimeout):
        await get(out, peer.url("/start"), timeout=0.3)

    assert [seen.target for seen in peer.seen] == ["/start", "/drip"]


async def test_the_deadline_covers_a_name_that_is_not_found_in_time() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(NetworkTimeout):
        await get(CheckedOutbound(find, resolve=resolve), "http://api.example/", timeout=0.1)


async def test_a_request_that_is_given_up_lets_go_of_its_connection(out: CheckedOutbound, peer: Peer) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def watch(seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        asked.set()
        await seen.left()
        left.set()
        return b""

    peer.pages["/"] = watch
    task = asyncio.create_task(get(out, peer.url()))
    async with asyncio.timeout(20):
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await left.wait()


async def test_a_body_that_is_cut_is_not_read_to_its_end(out: CheckedOutbound, peer: Peer) -> None:
    left = asyncio.Event()

    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000)
        await writer.drain()
        await seen.left()
        left.set()
        return b""

    peer.pages["/"] = endless

    assert (await get(out, peer.url(), limit=1000)).is_cut
    async with asyncio.timeout(20):
        await left.wait()


# TLS


def contexts(folder: Path, name: str, address: str | None = None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's side and a client's that trusts it."""
    made = certificates.make(folder, name, address=address)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    return server, ssl.create_default_context(cafile=str(made.cert))


async def test_tls_is_checked_by_the_name_while_the_connection_goes_to_the_address(tmp_path: Path) -> None:
    server, trust = contexts(tmp_path, "api.example")
    names = []
    server.sni_callback = lambda tls, name, context: names.append(name)
    async with serving({"/": reply(b"safe")}, tls=server) as peer:
        out = CheckedOutbound(find, private_networks=LOOPBACK, resolve=everywhere, trust=trust)
        answer = await get(out, peer.url(host="api.example", scheme="https"))
        with pytest.raises(NetworkError, match=r"certificate of other\.example is not trusted") as failed:
            await get(out, peer.url(host="other.example", scheme="https"))

    assert answer.body == b"safe"
    assert names == ["api.example", "other.example"]
    assert peer.seen[0].headers["host"] == f"api.example:{peer.port}"
    assert len(peer.seen) == 1
    assert not failed.value.retryable


async def test_an_address_in_the_url_is_checked_in_the_certificate(tmp_path: Path) -> None:
    server, trust = contexts(tmp_path, "api.example", "127.0.0.1")
    async with serving({"/": reply(b"safe")}, tls=server) as peer:
        out = CheckedOutbound(find, private_networks=LOOPBACK, trust=trust)

        assert (await get(out, peer.url(scheme="https"))).body == b"safe"


async def test_a_certificate_nobody_vouches_for_is_not_trusted(tmp_path: Path, out: CheckedOutbound) -> None:
    server, _ = contexts(tmp_path, "api.example")
    async with serving({"/": reply(b"safe")}, tls=server) as peer:
        with pytest.raises(NetworkError, match="is not trusted"):
            await get(out, peer.url(host="api.example", scheme="https"))

    assert peer.seen == []


async def test_a_server_without_tls_is_a_network_error(out: CheckedOutbound, peer: Peer) -> None:
    with pytest.raises(NetworkError, match="The TLS handshake with"):
        await get(out, peer.url(host="api.example", scheme="https"))


async def test_a_handshake_that_takes_too_long_leaves_no_connection_behind(out: CheckedOutbound) -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        left.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(20):
        with pytest.raises(NetworkTimeout):
            await get(out, f"https://api.example:{port}/", timeout=0.5)
        await left.wait()


async def test_a_redirect_from_https_to_http_is_not_followed(tmp_path: Path, peer: Peer) -> None:
    server, trust = contexts(tmp_path, "api.example")
    async with serving({"/": redirect(peer.url(host="api.example"))}, tls=server) as safe:
        out = CheckedOutbound(find, private_networks=LOOPBACK, resolve=everywhere, trust=trust)
        with pytest.raises(NetworkError, match="from https to http") as failed:
            await get(out, safe.url(host="api.example", scheme="https"))

    assert not failed.value.retryable
    assert peer.connections == 0


async def test_no_error_holds_a_secret(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = b"junk\r\n"
    uses = (SecretUse("TOKEN"), SecretUse("TOKEN", "query", "key"))

    with pytest.raises(CallError) as failed:
        await out.send(HttpRequest(method="GET", url=peer.url(), secrets=uses), owner="anna")

    assert "s3cret" not in str(failed.value.as_dict())


PLACED = (BoundSecret("BOUND", "api.example", "tsec_1"), BoundSecret("BOUND", "other.example", "tsec_2"))
LENT = SessionSecrets("anna", PLACED)


async def send_lent(out: CheckedOutbound, url: str, headers: dict[str, str], owner: str = "bert") -> HttpResponse:
    async with asyncio.timeout(20):
        return await out.send(HttpRequest(method="GET", url=url, headers=headers), owner=owner, lent=LENT)


async def test_a_placeholder_in_a_header_becomes_the_lent_value_for_its_host_only(
    out: CheckedOutbound, peer: Peer
) -> None:
    basic = base64.b64encode(b"user:tsec_1").decode()
    headers = {"X-Key": "key tsec_1", "Authorization": f"Basic {basic}", "User-Agent": "tsec_2"}

    await send_lent(out, peer.url("/?tsec_1", "api.example"), headers)
    await send_lent(out, peer.url("/", "elsewhere.example"), headers)

    first, second = peer.seen
    assert first.target == "/?tsec_1"
    assert first.headers["x-key"] == "key bound-value"
    assert first.headers["authorization"] == f"Basic {base64.b64encode(b'user:bound-value').decode()}"
    assert first.headers["user-agent"] == "tsec_2"
    assert (second.headers["x-key"], second.headers["authorization"]) == ("key tsec_1", f"Basic {basic}")


async def test_a_longer_word_is_another_placeholder(out: CheckedOutbound, peer: Peer) -> None:
    headers = {"X-Keys": "tsec_1 tsec_1x tsec_12 tsec_1-tsec_1"}

    await send_lent(out, peer.url("/", "api.example"), headers)

    assert peer.seen[0].headers["x-keys"] == "bound-value tsec_1x tsec_12 bound-value-bound-value"


async def test_a_lent_value_is_not_carried_along_by_a_redirect(out: CheckedOutbound, peer: Peer) -> None:
    peer.pages["/"] = redirect(peer.url("/there", "elsewhere.example"))

    await send_lent(out, peer.url("/", "api.example"), {"X-Key": "tsec_1", "Accept": "tsec_1"})

    assert [seen.headers.get("x-key") for seen in peer.seen] == ["bound-value", None]
    assert [seen.headers["accept"] for seen in peer.seen] == ["bound-value", "tsec_1"]


async def test_a_lent_secret_that_is_kept_for_other_hosts_is_refused(out: CheckedOutbound, peer: Peer) -> None:
    with pytest.raises(PermissionDenied, match="bound to other hosts"):
        await send_lent(out, peer.url("/", "other.example"), {"X-Key": "tsec_2"})

    assert peer.connections == 0
