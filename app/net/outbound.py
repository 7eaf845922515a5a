"""The wire out: every request of a tool, hop by hop, with its secrets and within its policies."""

import asyncio
import base64
import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus, urljoin

from app import __version__
from app.core.errors import InvalidArgs, NetworkError, NetworkTimeout, PermissionDenied, ToolUnavailable
from app.core.network_policy import NetworkPolicy, SessionSecrets, allow
from app.core.ports import Agree, HttpRequest, HttpResponse, SecretUse
from app.core.util.headers import UNWRITABLE, check_header, check_secret
from app.core.util.urls import PORTS, InvalidUrl, ParsedUrl, read_url
from app.net.decompress import ACCEPTED
from app.net.resolver import Resolve, Resolver, resolve
from app.net.secret_placeholders import Find, bound_to, is_in, put, require_writable, value_for
from app.net.tls import trusting_the_web

if TYPE_CHECKING:
    from app.net.pinned_http import PinnedResponse

MAX_REDIRECTS = 5
METHOD = re.compile(r"[A-Z]{3,16}")
COOKIE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
FOREIGN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent", "traceparent", "tracestate"})
"""What another host may see after a redirect: any other header could be a key."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of the chain, before its secrets."""

    method: str
    where: ParsedUrl
    headers: Mapping[str, str]
    secrets: tuple[SecretUse, ...]
    body: bytes | None


class CheckedOutbound:
    """The `Outbound` port. A connection serves one request, so that no checked address can be mixed with another."""

    def __init__(
        self,
        find: Find,
        *,
        policy: NetworkPolicy | None = None,
        private_networks: Iterable[str] = (),
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._find = find
        self._policy = policy
        self._resolver = Resolver(private_networks, resolve)
        self._trust = trust

    async def send(
        self,
        request: HttpRequest,
        *,
        owner: str,
        policies: Sequence[NetworkPolicy | None] = (),
        agree: Agree | None = None,
        lent: SessionSecrets | None = None,
    ) -> HttpResponse:
        hop = _first(request)
        try:
            async with asyncio.timeout(request.timeout) as clock:
                purse = _ByteBudget(self._find, owner, lent)
                return await self._follow(hop, request.limit, purse, _RedirectConsent(policies, agree, clock))
        except TimeoutError:
            raise NetworkTimeout(f"{hop.where.host} did not answer within {request.timeout:g} s.") from None

    async def _follow(self, hop: Hop, limit: int, purse: "_ByteBudget", consent: "_RedirectConsent") -> HttpResponse:
        """From the first host to the one that answers, each hop judged anew."""
        private = {use.name for use in hop.secrets if use.into == "query"}
        self._admit(hop.where.host, consent.policies)
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(hop, limit, purse)
            if answer.location is None:
                url = str(_without(hop.where, private))  # a redirect may have repeated a secret
                return HttpResponse(
                    status=answer.status, headers=answer.headers, body=answer.body, url=url, is_cut=answer.is_cut
                )
            before, hop = hop.where.host, _next(hop, answer.status, answer.location)
            self._admit(hop.where.host, consent.policies)
            if hop.where.host != before:
                await consent.ask(hop.where.host)
        raise _final(f"{hop.where.host} was redirected to after {MAX_REDIRECTS} redirects; no more are followed.")

    def _admit(self, host: str, policies: Sequence[NetworkPolicy | None]) -> None:
        if not allow(host, [self._policy]):
            raise PermissionDenied(f"The operator's network policy does not allow {host}.", details={"host": host})
        if not allow(host, policies):
            raise PermissionDenied(f"The session's network policy does not allow {host}.", details={"host": host})

    async def _send(self, hop: Hop, limit: int, purse: "_ByteBudget") -> "PinnedResponse":
        headers, where = _dress(hop, purse)
        addresses = await self._resolver.find(where.host, where.port)
        if self._trust is None and where.scheme == "https":
            self._trust = await asyncio.to_thread(trusting_the_web)
        # The HTTP client is loaded by the first request: a service without one starts sooner and stays smaller.
        from app.net.pinned_http import PinnedRequest, exchange

        return await exchange(PinnedRequest(hop.method, where, headers, hop.body), addresses, self._trust, limit)


def _dress(hop: Hop, purse: "_ByteBudget") -> tuple[list[tuple[bytes, bytes]], ParsedUrl]:
    """The request with the values of its secrets: its headers, and where it goes."""
    headers, where, cookies = purse.fill(hop.headers, hop.where.host), hop.where, list[str]()
    for use in hop.secrets:
        value = purse.value(use, hop.where.host)
        if use.into == "query":
            where = _with(where, use.name, value)
        elif use.into == "cookie":
            cookies.append(f"{use.name}={value}")
        else:
            headers = {name: text for name, text in headers.items() if name.lower() != use.name.lower()}
            headers[use.name] = value
    if cookies:
        given = next((name for name in headers if name.lower() == "cookie"), "Cookie")
        headers[given] = "; ".join([*([headers[given]] if given in headers else []), *cookies])
    return [(name.encode(), text.strip().encode()) for name, text in headers.items()], where


@dataclass(frozen=True, slots=True)
class _ByteBudget:
    """The secrets a request may take along: those of who made the tool, and those lent by who uses it."""

    find: Find
    owner: str
    lent: SessionSecrets | None

    def value(self, use: SecretUse, host: str) -> str:
        """A secret as it goes along, if it may go to this host."""
        value = value_for(self.find, self.owner, use.secret, host)
        match use.form:
            case "bearer":
                value = f"Bearer {value}"
            case "basic":
                value = f"Basic {base64.b64encode(value.encode()).decode()}"
        is_fit = COOKIE.fullmatch(value) if use.into == "cookie" else not UNWRITABLE.search(value)
        if use.into != "query" and not is_fit:
            raise ToolUnavailable(f"The secret {use.secret} holds characters that a {use.into} cannot carry.")
        return value

    def fill(self, headers: Mapping[str, str], host: str) -> dict[str, str]:
        """The headers with the values of lent secrets in place of their placeholders, if they are for this host."""
        placed = [] if self.lent is None else bound_to(host, self.lent.bound)
        named = [one for one in placed if any(is_in(one.placeholder, *header) for header in headers.items())]
        if self.lent is None or not named:
            return dict(headers)
        values = dict[str, str]()
        for one in named:
            values[one.placeholder] = value_for(self.find, self.lent.owner, one.name, host)
            require_writable(one.name, values[one.placeholder])
        return {name: put(values, name, text) for name, text in headers.items()}


@dataclass(frozen=True, slots=True)
class _RedirectConsent:
    """Who has to agree to a host. While a person thinks about it, no time passes for the request."""

    policies: Sequence[NetworkPolicy | None]
    agree: Agree | None
    clock: asyncio.Timeout

    async def ask(self, host: str) -> None:
        if self.agree is None:
            return
        loop = asyncio.get_running_loop()
        left = (self.clock.when() or 0.0) - loop.time()
        self.clock.reschedule(None)
        await self.agree(host)
        self.clock.reschedule(loop.time() + left)


def _first(request: HttpRequest) -> Hop:
    try:
        where = read_url(request.url)
    except InvalidUrl as error:
        raise InvalidArgs(str(error)) from None
    method = request.method.upper()
    if not METHOD.fullmatch(method):
        raise InvalidArgs(f"{request.method[:20]!r} is no HTTP method.")
    try:
        for use in request.secrets:
            check_secret(use)
        for name, text in request.headers.items():
            check_header(name, text)
    except ValueError as error:
        raise InvalidArgs(str(error)) from None
    given = {name.lower() for name in request.headers}
    own = {"Accept": "*/*", "User-Agent": f"toolcrib/{__version__}"}
    headers = {name: text for name, text in own.items() if name.lower() not in given} | dict(request.headers)
    return Hop(method, where, headers | {"Accept-Encoding": ACCEPTED}, request.secrets, request.body)


def _next(hop: Hop, status: int, location: str) -> Hop:
    """Where a redirect leads, with what may go along: as browsers do it, but more careful with foreign hosts."""
    try:
        where = read_url(urljoin(str(hop.where), location.strip().replace(" ", "%20")))
    except ValueError:  # also what urljoin cannot read
        raise _final(f"{hop.where.host} redirects to what is no URL of the web.") from None
    if hop.where.scheme == "https" and where.scheme == "http":
        raise _final(f"{hop.where.host} redirects from https to http, which is not followed.")
    if (status == 303 and hop.method != "HEAD") or (status in (301, 302) and hop.method == "POST"):
        hop = replace(hop, method="GET", body=None, headers=_only(hop.headers, lambda name: name[:8] != "content-"))
    if not _is_same(hop.where, where):
        hop = replace(hop, secrets=(), headers=_only(hop.headers, lambda name: name in FOREIGN_HEADERS))
        hop = replace(hop, headers=dict(hop.headers) | {"Accept-Encoding": ACCEPTED})
    return replace(hop, where=where)


def _only(headers: Mapping[str, str], keeps: Callable[[str], bool]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if keeps(name.lower())}


def _is_same(before: ParsedUrl, after: ParsedUrl) -> bool:
    """Whether it is the same server: also where only https took the place of http, each on its usual port."""
    was, becomes = (before.scheme, before.port), (after.scheme, after.port)
    is_raised = was == ("http", PORTS["http"]) and becomes == ("https", PORTS["https"])
    return before.host == after.host and (is_raised or was == becomes)


def _with(where: ParsedUrl, name: str, value: str) -> ParsedUrl:
    """With a query parameter that is there only once, whatever a caller or a redirect put there."""
    where = _without(where, {name})
    glue = "&" if "?" in where.target else "?"
    return replace(where, target=f"{where.target}{glue}{quote(name, safe='')}={quote(value, safe='')}")


def _without(where: ParsedUrl, names: Set[str]) -> ParsedUrl:
    path, mark, query = where.target.partition("?")
    if not names or not mark:
        return where
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in names]
    return replace(where, target=path + ("?" + "&".join(kept) if kept else ""))


def _final(message: str) -> NetworkError:
    """It would be the same the next time."""
    error = NetworkError(message)
    error.retryable = False
    return error
