"""Forwards: a request of a caller, sent on to its host, and the answer handed back.

Both are written anew from what was understood of them, so that the host
understands the same. For a host that secrets are placed for, placeholders in
the headers of the request become values, and values in the answer
placeholders.
"""

import asyncio
from dataclasses import dataclass

from app.core.errors import CallError, PermissionDenied
from app.core.network_policy import BoundSecret
from app.core.util.urls import ParsedUrl
from app.net.egress.errors import Refused, failed, late
from app.net.egress.http1 import LAST_CHUNK, Body, Field, Framing, Request, chunk, framing_of_request, write_head
from app.net.egress.limits import ByteMeter
from app.net.egress.proxy_client import ProxyClient, ProxyDeps
from app.net.egress.response import Relay, Scrubber
from app.net.egress.secret_hosts import SecretHost
from app.net.egress.target import Target
from app.net.egress.tcp import Stream, connected, send
from app.net.secret_placeholders import bound_to, is_in, put, require_writable, value_for

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_VALUE = 4 * 1024
"""Bytes of a secret that fit into a head."""
REWRITTEN = frozenset({b"accept-encoding", b"range", b"if-range"})
"""Left out where a value could come back: it could not be found in what is compressed or cut at will."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a request goes: by plain HTTP, or for an alias by TLS."""

    target: Target
    alias: SecretHost | None = None


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The fields of a request as they go out, and what takes the values of secrets out of the answer."""

    fields: list[Field]
    scrubber: Scrubber | None


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it goes over the wire: its head, and how its body ends."""

    head: bytes
    framing: Framing


async def forward(caller: ProxyClient, request: Request, route: Upstream, means: ProxyDeps) -> None:
    """Serve a request to the end of its answer. Raises `Refused`, `Malformed`, `OverLimit`."""
    target = route.target
    framing = framing_of_request(request.head, is_modern=request.is_modern)
    is_expecting = _is_expecting(request)
    addresses = await means.admission.admit(target.host, target.port)
    dressed = _dress(caller, request, route, means)
    trust = None if route.alias is None else await means.trust()
    async with connected(target.host, target.port, addresses, trust) as stream:
        caller.tell(True, "allowed")
        sent = WireRequest(_head(request, route, dressed, framing), framing)
        if is_expecting and not framing.is_empty:
            await caller.send(CONTINUE)
        relay = Relay(caller, request, dressed.scrubber, route.alias, target.port)
        is_whole = await _exchange(caller, stream, sent, relay, ByteMeter(means.limits))
        stream[1].transport.abort()  # all was said; there is nothing to wait for
    if not is_whole:
        await caller.linger()


async def _exchange(caller: ProxyClient, stream: Stream, sent: WireRequest, relay: Relay, meter: ByteMeter) -> bool:
    """Send and receive at once: an answer may come before all was sent, and then nothing more is.

    The answer is whether all was.
    """
    reader, writer = stream
    try:
        async with meter.running(), asyncio.TaskGroup() as both:
            sending = both.create_task(_send(caller, writer, sent, meter))
            await relay.run(reader, meter)
            sending.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    except TimeoutError:
        raise late("The host did not go on in time.") from None
    return not sending.cancelled() and sending.result()


async def _send(caller: ProxyClient, writer: asyncio.StreamWriter, sent: WireRequest, meter: ByteMeter) -> bool:
    """Whether the host took all of it: one that does not may have answered all the same."""
    body, is_chunked, data = Body(caller.reader, sent.framing), sent.framing.is_chunked, sent.head
    while await _took(writer, data):
        piece = await body.read()
        if not piece:
            return not is_chunked or await _took(writer, LAST_CHUNK)
        meter.add(len(piece))
        data = chunk(piece) if is_chunked else piece
    return False


async def _took(writer: asyncio.StreamWriter, data: bytes) -> bool:
    try:
        await send(writer, data)
    except OSError:
        return False
    return True


def _is_expecting(request: Request) -> bool:
    expected = request.head.all(b"expect")
    if expected and (len(expected) > 1 or expected[0].lower() != b"100-continue"):
        raise Refused(417, "bad-request", "Nothing but 100-continue can be expected.")
    return bool(expected) and request.is_modern


def _head(request: Request, route: Upstream, dressed: RequestHeaders, framing: Framing) -> bytes:
    target = route.target
    authority = ParsedUrl("http" if route.alias is None else "https", target.host, target.port, "").authority
    fields: list[Field] = [(b"Host", authority.encode()), *dressed.fields, (b"Connection", b"close")]
    if framing.is_chunked:
        fields.append((b"Transfer-Encoding", b"chunked"))
    elif not framing.is_empty or request.method in ("POST", "PUT", "PATCH"):
        fields.append((b"Content-Length", str(framing.length).encode()))
    return write_head(f"{request.method} ".encode() + target.path + b" HTTP/1.1", fields)


def _dress(caller: ProxyClient, request: Request, route: Upstream, means: ProxyDeps) -> RequestHeaders:
    """The request with the values of the secrets it names, as far as they are for this host. Raises `Refused`."""
    fields = [field for field in request.head.onward() if field[0].lower() != b"host"]
    placed = bound_to(route.target.host, caller.leave.secrets)
    if not placed:
        return RequestHeaders(fields, None)
    fields = [field for field in fields if field[0].lower() not in REWRITTEN]
    fields.append((b"Accept-Encoding", b"identity"))
    texts = [(name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in fields]
    named = [one for one in placed if any(is_in(one.placeholder, *field) for field in texts)]
    if route.alias is not None and route.alias.secret not in named:
        named.append(route.alias.secret)
        texts = [field for field in texts if field[0].lower() != "authorization"]
        texts.append(("Authorization", f"Bearer {route.alias.secret.placeholder}"))
    values = {one.placeholder: _value(one, caller, route.target.host, means) for one in named}
    if values:
        texts = [(name, put(values, name, text)) for name, text in texts]
    filled = [(name.encode(), text.encode("utf-8", "surrogateescape")) for name, text in texts]
    return RequestHeaders(filled, _scrubber(placed, caller, means))


def _value(one: BoundSecret, caller: ProxyClient, host: str, means: ProxyDeps) -> str:
    try:
        value = value_for(means.find, caller.leave.owner, one.name, host)
        require_writable(one.name, value)
    except PermissionDenied as error:
        raise Refused(403, "secret-not-for-host", error.message) from None
    except CallError as error:
        raise failed("secret-unavailable", error.message) from None
    if len(value.encode()) > MAX_VALUE:
        raise failed("secret-unavailable", f"The secret {one.name} is too long for a header.")
    return value


def _scrubber(placed: list[BoundSecret], caller: ProxyClient, means: ProxyDeps) -> Scrubber | None:
    """Also for what this request does not carry: an earlier one may have, and the host remembers."""
    found = ((one, means.find(caller.leave.owner, one.name)) for one in placed)
    values = {one.placeholder: known[1] for one, known in found if known is not None}
    values = {mark: value for mark, value in values.items() if len(value.encode()) <= MAX_VALUE}
    return Scrubber(values) if values else None
