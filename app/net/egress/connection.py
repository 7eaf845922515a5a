"""Proxying: one connection from behind walls, from its first byte to its last.

Callers of the egress proxy: one connection from behind walls, and what it is served with.
"""

import asyncio
import base64
import binascii
from hmac import compare_digest

from app.net.egress import secret_hosts
from app.net.egress.errors import Refused
from app.net.egress.forward import Upstream, forward
from app.net.egress.http1 import HeadTooLarge, Malformed, Request, read_head, to_request
from app.net.egress.limits import OverLimit
from app.net.egress.proxy_client import ProxyClient, ProxyDeps
from app.net.egress.target import Target, read_absolute, read_name, told
from app.net.egress.tunnel import tunnel

USE = "This is a proxy: set http_proxy and https_proxy to its address, and ask for http:// or https:// URLs."


async def converse(caller: ProxyClient, means: ProxyDeps) -> None:
    """One request, its answer, and the end: nothing of one request can be taken for the next."""
    try:
        request = await _read(caller, means)
        if request is not None:
            await _serve(caller, request, means)
    except Refused as refused:
        await caller.refuse(refused)
    except Malformed as error:
        await caller.refuse(Refused(400, "bad-request", str(error)))
    except OverLimit:
        await caller.refuse(Refused(413, "over-limit", "More than may pass, or for longer; ask for less at a time."))


async def _read(caller: ProxyClient, means: ProxyDeps) -> Request | None:
    try:
        async with asyncio.timeout(means.limits.head_seconds):
            head = await read_head(caller.reader)
    except TimeoutError:
        raise Refused(408, "slow-request", "The head of the request did not come in time.") from None
    except HeadTooLarge as error:
        raise Refused(431, "bad-request", str(error)) from None
    return None if head is None else to_request(head)


async def _serve(caller: ProxyClient, request: Request, means: ProxyDeps) -> None:
    _authenticate(caller, request)
    caller.asked = told(request.target)
    if request.method == "CONNECT":
        await tunnel(caller, request, means)
    elif request.method == "TRACE":
        raise Refused(405, "method-not-allowed", "TRACE would show what others wrote into the request.")
    else:
        await forward(caller, request, _route(caller, request, means), means)


def _authenticate(caller: ProxyClient, request: Request) -> None:
    """Who does not show the token may be anybody, so nothing is told of it."""
    token = caller.leave.token
    if token is None:
        return
    shown = request.head.all(b"proxy-authorization")
    if len(shown) != 1 or not compare_digest(_password(shown[0]), token.encode()):
        raise Refused(407, "proxy-authentication", "The proxy needs its token as the password; it is in http_proxy.")


def _password(given: bytes) -> bytes:
    if given[:6].lower() != b"basic ":
        return b""
    try:
        return base64.b64decode(given[6:].strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _route(caller: ProxyClient, request: Request, means: ProxyDeps) -> Upstream:
    """Where a request that is no tunnel goes. Raises `Refused`."""
    if request.target.startswith(b"/"):
        [given] = request.head.all(b"host") or [b""]
        caller.asked = told(given)
        if read_name(given.decode("latin-1").removesuffix(":80")) != secret_hosts.HOST:
            raise Refused(400, "no-proxy-request", USE)
        target = Target(secret_hosts.HOST, 80, request.target)
    else:
        target = read_absolute(request.target)
    caller.asked = target
    if (target.host, target.port) != (secret_hosts.HOST, 80):
        return Upstream(target)
    alias = secret_hosts.find_alias(target.path, caller.leave.secrets)
    caller.asked = target = Target(alias.host, means.https, alias.path)
    return Upstream(target, alias)
