"""OpenAPI import: the operations of an API description become definitions of HTTP tools."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin

from pydantic import ValidationError

from app.core.custom_tools import NAME, HttpDefinition, OpenApiImport, Skipped
from app.core.ports import HttpRequest, Outbound
from app.core.rules import matches
from app.core.util.urls import read_url
from app.custom import http_tools
from app.custom.openapi import swagger2
from app.custom.openapi.document import MAX_BYTES, parse
from app.custom.openapi.operations import Operation, define
from app.custom.openapi.schemas import Components
from app.custom.openapi.security import Credentials

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
UNSUPPORTED_METHODS = ("OPTIONS", "TRACE")
MAX_NAME_LENGTH = 64
HASH_LENGTH = 8
MALFORMED = (TypeError, AttributeError, LookupError, RecursionError)
"""Raised for a list where an object should be, and the like."""


class ApiImporter:
    """Fetches a description and reads it in a thread, because a large one takes about a second."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def __call__(self, request: OpenApiImport, principal: str) -> tuple[list[HttpDefinition], list[Skipped]]:
        """Raises `ValueError` for an invalid description, and a `CallError` for one that cannot be fetched."""
        text = await self._fetch(request.url, principal) if request.url is not None else request.document
        return await asyncio.to_thread(_import, request, text)

    async def _fetch(self, url: str, principal: str) -> str:
        response = await self._outbound.send(HttpRequest(method="GET", url=url, limit=MAX_BYTES), owner=principal)
        if response.status != 200:
            raise ValueError(f"{url} answered {response.status}.")
        if response.is_cut:
            raise ValueError(f"{url} answered with more than {MAX_BYTES:,} bytes.")
        return response.body.decode("utf-8", "replace")


def _import(
    request: OpenApiImport, document: dict[str, Any] | str | None
) -> tuple[list[HttpDefinition], list[Skipped]]:
    return read(
        parse(document) if isinstance(document, str) else document or {},
        prefix=request.prefix,
        include=request.include,
        exclude=request.exclude,
        auth=request.auth or None,
        server=request.server,
        url=request.url,
    )


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
    """The tools of a description, in its order; raises `ValueError` when the description or a parameter is invalid.

    `include` and `exclude` are patterns for an operation's id, its tool's name, `METHOD /path`, or a tag. `server`
    replaces those in the document; `url` is where the document came from.
    """
    definitions, skipped = list[HttpDefinition](), list[Skipped]()
    try:
        document = _to_openapi3(document)
        components = Components(document)
        credentials = Credentials(auth, document, _security_schemes(document, components))
        operations = list(_operations(document, components, server=server, url=url, skipped=skipped))
        names = _names(operations, prefix)
        for operation in operations:
            name = names[operation.label]
            if not _is_selected(operation, name, include, exclude):
                continue
            try:
                definitions.append(_to_definition(operation, name, components, credentials))
            except ValueError as error:
                skipped.append(Skipped(operation.label, _reason(error)))
            except MALFORMED:
                skipped.append(Skipped(operation.label, "it is not valid OpenAPI"))
    except MALFORMED:
        raise ValueError("The description is not valid OpenAPI.") from None
    return definitions, skipped


def _to_definition(operation: Operation, name: str, components: Components, credentials: Credentials) -> HttpDefinition:
    if operation.method in UNSUPPORTED_METHODS:
        raise ValueError(f"{operation.method} requests are not sent")
    definition = define(operation, name, components, credentials.of(operation.spec))
    http_tools.make(definition, None)  # raises when it cannot be a tool
    return definition


def _to_openapi3(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("swagger") == "2.0":
        document = swagger2.upgrade(document)
    version = document.get("openapi")
    if not isinstance(version, str) or not re.match(r"3\.[01]", version):
        raise ValueError("The description is not of OpenAPI 3.0 or 3.1, nor of Swagger 2.0.")
    if not isinstance(document.get("paths"), dict):
        raise ValueError("The description has no paths.")
    return document


def _security_schemes(document: dict[str, Any], components: Components) -> dict[str, Any]:
    """The security schemes by name, without those that cannot be resolved."""
    schemes: dict[str, Any] = {}
    for name, spec in (document.get("components", {}).get("securitySchemes") or {}).items():
        with suppress(ValueError):
            schemes[name] = components.resolve(spec)
    return schemes


def _operations(
    document: dict[str, Any],
    components: Components,
    *,
    server: str | None,
    url: str | None,
    skipped: list[Skipped],
) -> Iterator[Operation]:
    default = _server(document, url) if server is None else _absolute(server, url)
    for path, raw in document["paths"].items():
        if path.startswith("x-"):
            continue
        try:
            item = components.resolve(raw)
        except ValueError as error:
            skipped.append(Skipped(path, str(error)))
            continue
        shared = item.get("parameters", [])
        for method, spec in item.items():
            if method.upper() not in (*METHODS, *UNSUPPORTED_METHODS) or not isinstance(spec, dict):
                continue
            own = next((holder for holder in (spec, item) if holder.get("servers")), None)
            try:
                base = default if own is None or server is not None else _server(own, url)
            except ValueError as error:
                skipped.append(Skipped(f"{method.upper()} {path}", str(error)))
                continue
            yield Operation(method.upper(), path, spec, shared if isinstance(shared, list) else [], base)


def _server(holder: dict[str, Any], url: str | None) -> str:
    """The first server, with the defaults of its variables; without one, where the document came from."""
    servers = holder.get("servers") or [{"url": "/"}]
    first = servers[0] if isinstance(servers, list) and isinstance(servers[0], dict) else {}
    address = str(first.get("url", "/"))
    for name, variable in (first.get("variables") or {}).items():
        address = address.replace(f"{{{name}}}", str((variable or {}).get("default", "")))
    return _absolute(address, url)


def _absolute(address: str, url: str | None) -> str:
    absolute = urljoin(url, address) if url else address
    try:
        read_url(absolute)
    except ValueError:
        raise ValueError(f"server: {address[:80]!r} is not an absolute URL like https://api.example.com/v1.") from None
    return absolute.partition("?")[0].partition("#")[0]


def _names(operations: list[Operation], prefix: str) -> dict[str, str]:
    """A valid tool name for each operation. Equal names get a hash of the operation."""
    plain = {operation.label: _name(operation, prefix) for operation in operations}
    counts = Counter(plain.values())
    return {label: name if counts[name] == 1 else _with_hash(name, label) for label, name in plain.items()}


def _name(operation: Operation, prefix: str) -> str:
    id = operation.spec.get("operationId")
    source = id if isinstance(id, str) and id.strip() else f"{operation.method.lower()}_{operation.path}"
    separator = "" if not prefix or prefix.endswith(("_", "-")) else "_"
    name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "_", source)).strip("_-")
    name = f"{prefix}{separator}{name}"
    if not name[:1].isalpha() or not name[:1].isascii():
        name = f"op_{name}"
    if re.match(NAME, name):
        return name
    return _with_hash(name, operation.label)


def _with_hash(name: str, label: str) -> str:
    digest = hashlib.sha256(label.encode()).hexdigest()[:HASH_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - HASH_LENGTH - 1].rstrip('_-')}_{digest}"


def _is_selected(operation: Operation, name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    tags = operation.spec.get("tags")
    words = [name, operation.label, *(tags if isinstance(tags, list) else ()), operation.spec.get("operationId")]
    labels = [word for word in words if isinstance(word, str)]

    def matches_any(patterns: Sequence[str]) -> bool:
        return any(matches(pattern, label) for pattern in patterns for label in labels)

    return (not include or matches_any(include)) and not matches_any(exclude)


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
