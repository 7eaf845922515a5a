"""OpenAPI import: the operations of an API description become definitions of http tools. Nothing is fetched here.

Reading and checking a large description takes a second or two of computing, so
it belongs into a thread.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin

from pydantic import ValidationError

from app.core.custom_tools import NAME, HttpDefinition, Skipped
from app.core.rules import matches
from app.core.util.urls import read_url
from app.custom import http_tools
from app.custom.openapi import swagger2
from app.custom.openapi.document import parse
from app.custom.openapi.operations import Operation, define
from app.custom.openapi.schemas import Components
from app.custom.openapi.security import Credentials

__all__ = ["Skipped", "parse", "read"]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
UNSENT = ("OPTIONS", "TRACE")
MAX_NAME = 64
HASH = 8
MALFORMED = (TypeError, AttributeError, LookupError, RecursionError)
"""What comes of a list where there should be an object, and the like."""


def read(
    document: dict[str, Any],
    *,
    prefix: str = "",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    auth: Mapping[str, Any] | None = None,
    server: str | None = None,
    url: str | None = None,
) -> tuple[list[HttpDefinition], list[Skipped]]:
    """The tools of a description, in its order. Raises `ValueError` when it is none, or cannot be followed as asked.

    `include` and `exclude` are patterns for an operation's id, its tool's name, `METHOD /path`, or a tag. `server`
    takes the place of those in the document; `url` is where the document came from.
    """
    try:
        return _read(_check(document), prefix, (include, exclude), auth, (server, url))
    except MALFORMED:
        raise ValueError("The description is not built as OpenAPI says.") from None


def _read(
    document: dict[str, Any],
    prefix: str,
    wanted: tuple[Sequence[str], Sequence[str]],
    auth: Mapping[str, Any] | None,
    places: tuple[str | None, str | None],
) -> tuple[list[HttpDefinition], list[Skipped]]:
    components = Components(document)
    credentials = Credentials(auth, document, _schemes(document, components))
    made: list[HttpDefinition] = []
    skipped: list[Skipped] = []
    operations = list(_operations(document, components, places, skipped))
    names = _names(operations, prefix)
    for operation in operations:
        name = names[operation.place]
        if not _is_wanted(operation, name, *wanted):
            continue
        try:
            made.append(_make(operation, name, components, credentials))
        except ValueError as error:
            skipped.append(Skipped(operation.place, _reason(error)))
        except MALFORMED:
            skipped.append(Skipped(operation.place, "it is not built as OpenAPI says"))
    return made, skipped


def _make(operation: Operation, name: str, components: Components, credentials: Credentials) -> HttpDefinition:
    if operation.method in UNSENT:
        raise ValueError(f"{operation.method} requests are not sent")
    definition = define(operation, name, components, credentials.of(operation.said))
    http_tools.make(definition, None)
    return definition


def _check(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("swagger") == "2.0":
        document = swagger2.upgrade(document)
    version = document.get("openapi")
    if not isinstance(version, str) or not re.match(r"3\.[01]", version):
        raise ValueError("The description is not of OpenAPI 3.0 or 3.1, nor of Swagger 2.0.")
    if not isinstance(document.get("paths"), dict):
        raise ValueError("The description has no paths.")
    return document


def _schemes(document: dict[str, Any], components: Components) -> dict[str, Any]:
    """The security schemes by name; one that cannot be read is as good as none."""
    found: dict[str, Any] = {}
    for name, given in (document.get("components", {}).get("securitySchemes") or {}).items():
        with suppress(ValueError):
            found[name] = components.resolve(given)
    return found


def _operations(
    document: dict[str, Any],
    components: Components,
    places: tuple[str | None, str | None],
    skipped: list[Skipped],
) -> Iterator[Operation]:
    server, url = places
    everywhere = _server(document, url) if server is None else _whole(server, url)
    for path, given in document["paths"].items():
        if path.startswith("x-"):
            continue
        try:
            item = components.resolve(given)
        except ValueError as error:
            skipped.append(Skipped(path, str(error)))
            continue
        shared = item.get("parameters", [])
        for method, said in item.items():
            if method.upper() not in (*METHODS, *UNSENT) or not isinstance(said, dict):
                continue
            own = next((one for one in (said, item) if one.get("servers")), None)
            try:
                base = everywhere if own is None or server is not None else _server(own, url)
            except ValueError as error:
                skipped.append(Skipped(f"{method.upper()} {path}", str(error)))
                continue
            yield Operation(method.upper(), path, said, shared if isinstance(shared, list) else [], base)


def _server(holder: dict[str, Any], url: str | None) -> str:
    """The first server named, with the defaults of its variables; when none is, the one the document is on."""
    servers = holder.get("servers") or [{"url": "/"}]
    first = servers[0] if isinstance(servers, list) and isinstance(servers[0], dict) else {}
    address = str(first.get("url", "/"))
    for name, variable in (first.get("variables") or {}).items():
        address = address.replace(f"{{{name}}}", str((variable or {}).get("default", "")))
    return _whole(address, url)


def _whole(address: str, url: str | None) -> str:
    whole = urljoin(url, address) if url else address
    try:
        read_url(whole)
    except ValueError:
        raise ValueError(
            f"server: {address[:80]!r} is no whole URL; say where the API is, like https://api.example.com/v1."
        ) from None
    return whole.partition("?")[0].partition("#")[0]


def _names(operations: list[Operation], prefix: str) -> dict[str, str]:
    """A legal name for each operation. Where several would have the same, each is told apart by what it is."""
    plain = {one.place: _name(one, prefix) for one in operations}
    counts = Counter(plain.values())
    return {place: name if counts[name] == 1 else _marked(name, place) for place, name in plain.items()}


def _name(operation: Operation, prefix: str) -> str:
    given = operation.said.get("operationId")
    source = given if isinstance(given, str) and given.strip() else f"{operation.method.lower()}_{operation.path}"
    glue = "" if not prefix or prefix.endswith(("_", "-")) else "_"
    name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "_", source)).strip("_-")
    name = f"{prefix}{glue}{name}"
    if not name[:1].isalpha() or not name[:1].isascii():
        name = f"op_{name}"
    if re.match(NAME, name):
        return name
    return _marked(name, operation.place)


def _marked(name: str, place: str) -> str:
    mark = hashlib.sha256(place.encode()).hexdigest()[:HASH]
    return f"{name[: MAX_NAME - HASH - 1].rstrip('_-')}_{mark}"


def _is_wanted(operation: Operation, name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    tags = operation.said.get("tags")
    words = [name, operation.place, *(tags if isinstance(tags, list) else ()), operation.said.get("operationId")]
    known = [word for word in words if isinstance(word, str)]

    def fits(patterns: Sequence[str]) -> bool:
        return any(matches(pattern, word) for pattern in patterns for word in known)

    return (not include or fits(include)) and not fits(exclude)


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
