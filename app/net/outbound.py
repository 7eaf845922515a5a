"""The `Outbound` port: HTTP requests of tools, with secrets, network policies and redirects checked hop by hop."""

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
from app.net.secret_placeholders import Find, bound_to, contains, require_writable, substitute, value_for
from app.net.tls import trust_public_cas

if TYPE_CHECKING:
    from app.net.pinned_http import PinnedResponse

MAX_REDIRECTS = 5
METHOD = re.compile(r"[A-Z]{3,16}")
COOKIE_VALUE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
CROSS_ORIGIN_HEADERS = frozenset(
    {"accept", "accept-language", "content-type", "user-agent", "traceparent", "tracestate"}
)
"""Headers that another host may get after a redirect; any other header could hold a key."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a redirect chain, without the values of its secrets."""

    method: str
    where: ParsedUrl
    headers: Mapping[str, str]
    secrets: tuple[SecretUse, ...]
    body: bytes | None


class CheckedOutbound:
    """Uses one connection per request, so that checked addresses are never mixed up."""

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
                secrets = _RequestSecrets(self._find, owner, lent)
                return await self._follow(hop, request.limit, secrets, _RedirectConsent(policies, agree, clock))
        except TimeoutError:
            raise NetworkTimeout(f"{hop.where.host} did not respond within {request.timeout:g} s.") from None

    async def _follow(
        self, hop: Hop, limit: int, secrets: "_RequestSecrets", consent: "_RedirectConsent"
    ) -> HttpResponse:
        """Follow redirects; each hop is checked against the policies."""
        secret_names = {use.name for use in hop.secrets if use.into == "query"}
        self._admit(hop.where.host, consent.policies)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(hop, limit, secrets)
            if response.location is None:
                url = str(_without(hop.where, secret_names))  # a redirect may have repeated a secret
                return HttpResponse(
                    status=response.status,
                    headers=response.headers,
                    body=response.body,
                    url=url,
                    is_cut=response.is_cut,
                )
            before, hop = hop.where.host, _next(hop, response.status, response.location)
            self._admit(hop.where.host, consent.policies)
            if hop.where.host != before:
                await consent.ask(hop.where.host)
        raise _final(f"More than {MAX_REDIRECTS} redirects; the last one leads to {hop.where.host}.")

    def _admit(self, host: str, policies: Sequence[NetworkPolicy | None]) -> None:
        if not allow(host, [self._policy]):
            raise PermissionDenied(f"The operator's network policy does not allow {host}.", details={"host": host})
        if not allow(host, policies):
            raise PermissionDenied(f"The session's network policy does not allow {host}.", details={"host": host})

    async def _send(self, hop: Hop, limit: int, secrets: "_RequestSecrets") -> "PinnedResponse":
        headers, where = _insert_secrets(hop, secrets)
        addresses = await self._resolver.find(where.host, where.port)
        if self._trust is None and where.scheme == "https":
            self._trust = await asyncio.to_thread(trust_public_cas)
        # Imported by the first request: a service without one starts faster and uses less memory.
        from app.net.pinned_http import PinnedRequest, exchange

        return await exchange(PinnedRequest(hop.method, where, headers, hop.body), addresses, self._trust, limit)


def _insert_secrets(hop: Hop, secrets: "_RequestSecrets") -> tuple[list[tuple[bytes, bytes]], ParsedUrl]:
    """The headers and the URL with the values of the secrets."""
    headers, where, cookies = secrets.fill(hop.headers, hop.where.host), hop.where, list[str]()
    for use in hop.secrets:
        value = secrets.value(use, hop.where.host)
        if use.into == "query":
            where = _without(where, {use.name})  # a parameter of the caller or of a redirect
            parameter = f"{quote(use.name, safe='')}={quote(value, safe='')}"
            where = replace(where, target=f"{where.target}{'&' if '?' in where.target else '?'}{parameter}")
        elif use.into == "cookie":
            cookies.append(f"{use.name}={value}")
        else:
            headers = {name: text for name, text in headers.items() if name.lower() != use.name.lower()}
            headers[use.name] = value
    if cookies:
        name = next((name for name in headers if name.lower() == "cookie"), "Cookie")
        headers[name] = "; ".join([*([headers[name]] if name in headers else []), *cookies])
    return [(name.encode(), text.strip().encode()) for name, text in headers.items()], where


@dataclass(frozen=True, slots=True)
class _RequestSecrets:
    """The secrets a request may use: those of the tool's owner, and those bound to the session (`lent`)."""

    find: Find
    owner: str
    lent: SessionSecrets | None

    def value(self, use: SecretUse, host: str) -> str:
        """The value of a secret for this host, in its form."""
        value = value_for(self.find, self.owner, use.secret, host)
        match use.form:
            case "bearer":
                value = f"Bearer {value}"
            case "basic":
                value = f"Basic {base64.b64encode(value.encode()).decode()}"
        is_valid = COOKIE_VALUE.fullmatch(value) if use.into == "cookie" else not UNWRITABLE.search(value)
        if use.into != "query" and not is_valid:
            raise ToolUnavailable(f"The secret {use.secret} holds characters that are not allowed in a {use.into}.")
        return value

    def fill(self, headers: Mapping[str, str], host: str) -> dict[str, str]:
        """The headers with placeholders of session secrets replaced, if the secrets are bound to this host."""
        bound = [] if self.lent is None else bound_to(host, self.lent.bound)
        used = [one for one in bound if any(contains(one.placeholder, *header) for header in headers.items())]
        if self.lent is None or not used:
            return dict(headers)
        values = dict[str, str]()
        for secret in used:
            values[secret.placeholder] = value_for(self.find, self.lent.owner, secret.name, host)
            require_writable(secret.name, values[secret.placeholder])
        return {name: substitute(values, name, text) for name, text in headers.items()}


@dataclass(frozen=True, slots=True)
class _RedirectConsent:
    """Asks for consent to a new host. The request's timeout is suspended meanwhile."""

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
        raise InvalidArgs(f"{request.method[:20]!r} is not an HTTP method.")
    try:
        for use in request.secrets:
            check_secret(use)
        for name, text in request.headers.items():
            check_header(name, text)
    except ValueError as error:
        raise InvalidArgs(str(error)) from None
    present = {name.lower() for name in request.headers}
    defaults = {"Accept": "*/*", "User-Agent": f"toolcrib/{__version__}"}
    headers = {name: text for name, text in defaults.items() if name.lower() not in present} | dict(request.headers)
    return Hop(method, where, headers | {"Accept-Encoding": ACCEPTED}, request.secrets, request.body)


def _next(hop: Hop, status: int, location: str) -> Hop:
    """The request after a redirect: as browsers do it, but with fewer headers for other hosts."""
    try:
        where = read_url(urljoin(str(hop.where), location.strip().replace(" ", "%20")))
    except ValueError:  # also raised by urljoin
        raise _final(f"{hop.where.host} redirects to an invalid URL.") from None
    if hop.where.scheme == "https" and where.scheme == "http":
        raise _final(f"{hop.where.host} redirects from https to http, which is not followed.")
    if (status == 303 and hop.method != "HEAD") or (status in (301, 302) and hop.method == "POST"):
        hop = replace(hop, method="GET", body=None, headers=_filter(hop.headers, lambda name: name[:8] != "content-"))
    if not _is_same_server(hop.where, where):
        hop = replace(hop, secrets=(), headers=_filter(hop.headers, lambda name: name in CROSS_ORIGIN_HEADERS))
        hop = replace(hop, headers=dict(hop.headers) | {"Accept-Encoding": ACCEPTED})
    return replace(hop, where=where)


def _filter(headers: Mapping[str, str], predicate: Callable[[str], bool]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if predicate(name.lower())}


def _is_same_server(before: ParsedUrl, after: ParsedUrl) -> bool:
    """Whether both URLs have the same server; an upgrade from http to https on the default ports counts as the same."""
    old, new = (before.scheme, before.port), (after.scheme, after.port)
    is_upgrade = old == ("http", PORTS["http"]) and new == ("https", PORTS["https"])
    return before.host == after.host and (is_upgrade or old == new)


def _without(where: ParsedUrl, names: Set[str]) -> ParsedUrl:
    path, question_mark, query = where.target.partition("?")
    if not names or not question_mark:
        return where
    parts = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in names]
    return replace(where, target=path + ("?" + "&".join(parts) if parts else ""))


def _final(message: str) -> NetworkError:
    """An error that a retry would not change."""
    error = NetworkError(message)
    error.retryable = False
    return error
