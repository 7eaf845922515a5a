"""Forwards a request to its host, and relays the response.

Both are written again from their parsed form, so that the host parses them the
same way. For a host that secrets are bound to, placeholders in the request
headers become values, and values in the response become placeholders.
"""

import asyncio
from dataclasses import dataclass

from app.core.errors import CallError, PermissionDenied
from app.core.network_policy import BoundSecret
from app.core.util.urls import ParsedUrl
from app.net.egress.errors import Refused, failed, timed_out
from app.net.egress.http1 import LAST_CHUNK, Body, Field, Framing, Request, chunk, request_framing, write_head
from app.net.egress.proxy_client import ByteMeter, ProxyClient, ProxyDeps
from app.net.egress.response import Relay, Scrubber
from app.net.egress.secret_hosts import SecretHost
from app.net.egress.target import Target
from app.net.egress.tcp import Stream, connected, send
from app.net.secret_placeholders import bound_to, contains, require_writable, substitute, value_for

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_SECRET_BYTES = 4 * 1024
UNSCRUBBABLE = frozenset({b"accept-encoding", b"range", b"if-range"})
"""Removed for hosts with secrets: a value could not be found in a compressed or partial response."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a request goes: plain HTTP, or TLS for a secret host."""

    target: Target
    secret_host: SecretHost | None = None


async def forward(client: ProxyClient, request: Request, upstream: Upstream, deps: ProxyDeps) -> None:
    """Serve a request until its response is complete. Raises `Refused`, `Malformed`, `OverLimit`."""
    target = upstream.target
    framing = request_framing(request)
    expects_continue = _expects_continue(request)
    addresses = await deps.policy.check(target.host, target.port)
    fields, scrubber = _request_fields(client, request, upstream, deps)
    trust = None if upstream.secret_host is None else await deps.trust()
    async with connected(target.host, target.port, addresses, trust) as stream:
        client.report(True, "allowed")
        head = _request_head(request, upstream, fields, framing)
        if expects_continue and not framing.is_empty:
            await client.send(CONTINUE)
        relay = Relay(client, request, scrubber, upstream.secret_host, target.port)
        body = Body(client.reader, framing)
        is_sent = await _exchange(stream, head, body, relay, ByteMeter(deps.limits))
        stream[1].transport.abort()  # the response is complete: nothing to wait for
    if not is_sent:
        await client.linger()


async def _exchange(stream: Stream, head: bytes, body: Body, relay: Relay, meter: ByteMeter) -> bool:
    """Send and receive at once: a response may come before all was sent, and then sending stops.

    Returns whether all was sent.
    """
    reader, writer = stream
    try:
        async with meter.running(), asyncio.TaskGroup() as both:
            sending = both.create_task(_send(writer, head, body, meter))
            await relay.run(reader, meter)
            sending.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    except TimeoutError:
        raise timed_out("The host did not continue in time.") from None
    return not sending.cancelled() and sending.result()


async def _send(writer: asyncio.StreamWriter, head: bytes, body: Body, meter: ByteMeter) -> bool:
    """Send a request; False if the host closed its side, which may have responded all the same."""
    data = head
    while await _write(writer, data):
        piece = await body.read()
        if not piece:
            return not body.is_chunked or await _write(writer, LAST_CHUNK)
        meter.add(len(piece))
        data = chunk(piece) if body.is_chunked else piece
    return False


async def _write(writer: asyncio.StreamWriter, data: bytes) -> bool:
    try:
        await send(writer, data)
    except OSError:
        return False
    return True


def _expects_continue(request: Request) -> bool:
    expect = request.head.all(b"expect")
    if expect and (len(expect) > 1 or expect[0].lower() != b"100-continue"):
        raise Refused(417, "bad-request", "The only supported expectation is 100-continue.")
    return bool(expect) and request.is_http11


def _request_head(request: Request, upstream: Upstream, fields: list[Field], framing: Framing) -> bytes:
    target = upstream.target
    authority = ParsedUrl("http" if upstream.secret_host is None else "https", target.host, target.port, "").authority
    fields = [(b"Host", authority.encode()), *fields, (b"Connection", b"close")]
    if framing.is_chunked:
        fields.append((b"Transfer-Encoding", b"chunked"))
    elif not framing.is_empty or request.method in ("POST", "PUT", "PATCH"):
        fields.append((b"Content-Length", str(framing.length).encode()))
    return write_head(f"{request.method} ".encode() + target.path + b" HTTP/1.1", fields)


def _request_fields(
    client: ProxyClient, request: Request, upstream: Upstream, deps: ProxyDeps
) -> tuple[list[Field], Scrubber | None]:
    """The header fields with the values of secrets bound to the host, and what removes them from the response.

    Raises `Refused`.
    """
    fields = [field for field in request.head.end_to_end() if field[0].lower() != b"host"]
    bound = bound_to(upstream.target.host, client.grant.secrets)
    if not bound:
        return fields, None
    fields = [field for field in fields if field[0].lower() not in UNSCRUBBABLE]
    fields.append((b"Accept-Encoding", b"identity"))
    texts = [(name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in fields]
    used = [secret for secret in bound if any(contains(secret.placeholder, *field) for field in texts)]
    if upstream.secret_host is not None and upstream.secret_host.secret not in used:
        used.append(upstream.secret_host.secret)
        texts = [field for field in texts if field[0].lower() != "authorization"]
        texts.append(("Authorization", f"Bearer {upstream.secret_host.secret.placeholder}"))
    values = {secret.placeholder: _value(secret, client, upstream.target.host, deps) for secret in used}
    if values:
        texts = [(name, substitute(values, name, text)) for name, text in texts]
    fields = [(name.encode(), text.encode("utf-8", "surrogateescape")) for name, text in texts]
    return fields, _scrubber(bound, client, deps)


def _value(secret: BoundSecret, client: ProxyClient, host: str, deps: ProxyDeps) -> str:
    try:
        value = value_for(deps.find, client.grant.owner, secret.name, host)
        require_writable(secret.name, value)
    except PermissionDenied as error:
        raise Refused(403, "secret-not-for-host", error.message) from None
    except CallError as error:
        raise failed("secret-unavailable", error.message) from None
    if len(value.encode()) > MAX_SECRET_BYTES:
        raise failed("secret-unavailable", f"The secret {secret.name} is too long for a header.")
    return value


def _scrubber(bound: list[BoundSecret], client: ProxyClient, deps: ProxyDeps) -> Scrubber | None:
    """For all secrets of the host, also those not in this request: the host may repeat an earlier one."""
    found = ((secret, deps.find(client.grant.owner, secret.name)) for secret in bound)
    values = {secret.placeholder: known[1] for secret, known in found if known is not None}
    values = {placeholder: value for placeholder, value in values.items() if len(value.encode()) <= MAX_SECRET_BYTES}
    return Scrubber(values) if values else None
