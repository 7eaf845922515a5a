"""HTTP client of a running service, for the command line; and whether a service could listen on a port."""

import errno
import json
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from app.net.tls import trust_only

TIMEOUT_SECONDS = httpx.Timeout(30, read=None)
PROBE_SECONDS = 5.0


class ServiceProblem(Exception):
    """The service refused, or could not be reached."""


class ServiceClient:
    """Sends requests to one service with one key. If `certificate` is set, only it is trusted."""

    def __init__(self, url: str, key: str, certificate: str | None = None) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT_SECONDS,
            verify=trust_only(certificate) if certificate else True,
        )
        self._url = url

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Send one request; returns the JSON response."""
        response = self._send(method, path, body, params)
        return response.json() if response.content else None

    def text(self, path: str, **params: Any) -> str:
        """GET a plain-text response."""
        return self._send("GET", path, None, params).text

    def _send(self, method: str, path: str, body: Any, params: dict[str, Any]) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body, params=params)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if response.is_error:
            raise ServiceProblem(_detail(response))
        return response

    def follow(self, method: str, path: str, body: Any = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The events of a stream."""
        for line in self._lines(method, path, body, params):
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def listen(self, path: str, **params: Any) -> Iterator[dict[str, Any] | None]:
        """The events of a stream, and None for each heartbeat; after the first heartbeat no event is missed."""
        for line in self._lines("GET", path, None, params):
            if line.startswith(":"):
                yield None
            elif line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def _lines(self, method: str, path: str, body: Any, params: dict[str, Any]) -> Iterator[str]:
        headers = {"Accept": "text/event-stream"}
        try:
            with self._http.stream(method, path, json=body, params=params, headers=headers) as response:
                if response.is_error:
                    response.read()
                    raise ServiceProblem(_detail(response))
                yield from _split_lines(response.iter_bytes())
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.TransportError) -> ServiceProblem:
        return ServiceProblem(f"No Toolcrib responds at {self._url} ({error}). Start one with `toolcrib serve`.")


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at LF only: other line separators such as U+2028 may be part of a text."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()


def probe(url: str, path: str, certificate: str | None = None) -> tuple[int, dict[str, Any]]:
    """GET a health route of a local service; returns the status and the body."""
    verify = trust_only(certificate) if certificate else True
    try:
        response = httpx.get(url + path, verify=verify, timeout=PROBE_SECONDS, trust_env=False)
        body = response.json()
    except (httpx.TransportError, ValueError) as error:
        raise ServiceProblem(f"{url}{path} does not respond like a Toolcrib ({error}).") from None
    return response.status_code, body if isinstance(body, dict) else {}


def listen_error(host: str, port: int) -> OSError | None:
    """The error that a service would get if it listened there now; None if it could."""
    try:
        [(family, kind, proto, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, proto) as listener:
            # As the service does: sockets that are bound with SO_REUSEADDR and do not listen block no other.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        return error
    return None


def is_in_use(error: OSError) -> bool:
    return error.errno == errno.EADDRINUSE


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError):
        return f"The service returned HTTP {response.status_code}."
