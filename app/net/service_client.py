"""A client of a running Toolcrib, for the command line."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from app.net.tls import trusting

TIMEOUT = httpx.Timeout(30, read=None)
PROBE_TIMEOUT = 5.0


class ServiceProblem(Exception):
    """The service refused, or could not be reached."""


class ServiceClient:
    """Speaks to one service with one key. A certificate that is given is the only one trusted."""

    def __init__(self, url: str, key: str, certificate: str | None = None) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT,
            verify=trusting(certificate) if certificate else True,
        )
        self._url = url

    def ask(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """One request, its JSON answer."""
        try:
            answer = self._http.request(method, path, json=body, params=params)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.is_error:
            raise ServiceProblem(_detail(answer))
        return answer.json() if answer.content else None

    def text(self, path: str, **params: Any) -> str:
        """What is answered as plain text."""
        try:
            answer = self._http.get(path, params=params)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.is_error:
            raise ServiceProblem(_detail(answer))
        return answer.text

    def follow(self, method: str, path: str, body: Any = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The events of a stream as they come."""
        for line in self._lines(method, path, body, params):
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def listen(self, path: str, **params: Any) -> Iterator[dict[str, Any] | None]:
        """The same, with None for each sign of life: behind the first one nothing is missed any more."""
        for line in self._lines("GET", path, None, params):
            if line.startswith(":"):
                yield None
            elif line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def _lines(self, method: str, path: str, body: Any, params: dict[str, Any]) -> Iterator[str]:
        headers = {"Accept": "text/event-stream"}
        try:
            with self._http.stream(method, path, json=body, params=params, headers=headers) as answer:
                if answer.is_error:
                    answer.read()
                    raise ServiceProblem(_detail(answer))
                yield from _cut(answer.iter_bytes())
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.TransportError) -> ServiceProblem:
        return ServiceProblem(f"No Toolcrib answers at {self._url} ({error}). Start one with `toolcrib serve`.")


def _cut(pieces: Iterable[bytes]) -> Iterator[str]:
    """Lines as the service ends them; what else counts as the end of one (U+2028, say) may stand in a text."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode()


def probe(url: str, path: str, certificate: str | None = None) -> tuple[int, dict[str, Any]]:
    """Ask a service of this machine how it is: the status and the body of its answer."""
    verify = trusting(certificate) if certificate else True
    try:
        answer = httpx.get(url + path, verify=verify, timeout=PROBE_TIMEOUT, trust_env=False)
        body = answer.json()
    except (httpx.TransportError, ValueError) as error:
        raise ServiceProblem(f"{url}{path} does not answer as a Toolcrib does ({error}).") from None
    return answer.status_code, body if isinstance(body, dict) else {}


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError):
        return f"The service answered {answer.status_code}."
