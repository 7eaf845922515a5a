"""Tunnels: bytes in both directions between a caller and a host, once it is clear who the caller speaks to."""

import asyncio

from app.net.egress import secret_hosts
from app.net.egress.errors import Refused
from app.net.egress.http1 import PIECE, Request, framing_of_request
from app.net.egress.limits import ByteMeter, OverLimit
from app.net.egress.proxy_client import ProxyClient, ProxyDeps
from app.net.egress.target import Target, is_literal, read_connect, read_name
from app.net.egress.tcp import connected, end_output, send
from app.net.egress.tls_sni import NoClientHello, read_hello

OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def tunnel(caller: ProxyClient, request: Request, means: ProxyDeps) -> None:
    """Serve a CONNECT to its end. Raises `Refused`, `Malformed`."""
    caller.asked = target = read_connect(request.target)
    if not framing_of_request(request.head, is_modern=request.is_modern).is_empty:
        raise Refused(400, "bad-request", "CONNECT has no body.")
    if target.host == secret_hosts.HOST:
        raise Refused(
            403, "alias-needs-http", f"{secret_hosts.HOST} is asked by http://, and goes on by TLS from here."
        )
    addresses = await means.admission.admit(target.host, target.port)
    async with connected(target.host, target.port, addresses) as (reader, writer):
        caller.has_answered = True
        await caller.send(OPENED)
        hello = await _hello(caller, target, means.limits.head_seconds) if target.port == means.https else b""
        caller.tell(True, "allowed")
        await send(writer, hello)
        meter = ByteMeter(means.limits)
        try:
            async with meter.running(), asyncio.TaskGroup() as both:
                both.create_task(_flow(caller.reader, writer, meter))
                both.create_task(_flow(reader, caller.writer, meter))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except TimeoutError:
            raise OverLimit from None


async def _hello(caller: ProxyClient, target: Target, seconds: float) -> bytes:
    """The first message of TLS, if it is for the host that was judged. Raises `Refused`."""
    try:
        async with asyncio.timeout(seconds):
            hello, name = await read_hello(caller.reader)
    except (NoClientHello, TimeoutError):
        raise Refused(403, "no-tls", f"Only TLS goes to port {target.port}.") from None
    # Who is reached by an address has no name to say.
    is_fitting = is_literal(target.host) if name is None else read_name(name) == target.host
    if not is_fitting:
        raise Refused(403, "sni-mismatch", f"TLS has to be for {target.host}, as CONNECT is.")
    return hello


async def _flow(source: asyncio.StreamReader, sink: asyncio.StreamWriter, meter: ByteMeter) -> None:
    """Who does not read makes the other one wait; who ends in one direction may go on in the other."""
    while data := await source.read(PIECE):
        meter.add(len(data))
        await send(sink, data)
    end_output(sink)
