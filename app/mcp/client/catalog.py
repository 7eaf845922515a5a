"""The tools a server lists. Each is validated by itself, so that an invalid one does not affect the others."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.core.mcp_servers import AnyServer, StdioServer
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import Connection, JsonRpcError, ServerInfo

MAX_TOOLS = 2_000
MAX_BYTES = 16 * 1024 * 1024
MAX_PAGES = 1_000
MAX_NAME = 1_024
MAX_INVALID = 100
MAX_REASON = 300
METHOD_NOT_FOUND = -32601


class Invalid(NamedTuple):
    """A tool that cannot be offered, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """A server's description of itself and its tools."""

    fingerprint: str
    server_info: ServerInfo
    tools: tuple[Raw, ...] = ()
    invalid: tuple[Invalid, ...] = ()

    def allowed_tools(self, server: AnyServer) -> list[Raw]:
        """The tools, filtered by the operator's `allowed_tools` and `denied_tools`."""
        allowed, denied = server.allowed_tools, frozenset(server.denied_tools)
        return [
            tool for tool in self.tools if tool["name"] not in denied and (allowed is None or tool["name"] in allowed)
        ]


async def read_catalog(connection: Connection, server: AnyServer) -> Catalog:
    """List all tools within the startup timeout. Raises `JsonRpcError`, `ConnectionLost` and `TimeoutError`."""
    reader = _CatalogReader()
    try:
        async with asyncio.timeout(server.startup_timeout):
            await _read_pages(connection, reader)
    except JsonRpcError as error:
        if connection.server_info.has("tools") or error.code != METHOD_NOT_FOUND:
            raise  # a server that declared no tools need not have the method
    return Catalog(fingerprint(server), connection.server_info, tuple(reader.tools.values()), tuple(reader.invalid))


async def _read_pages(connection: Connection, reader: "_CatalogReader") -> None:
    cursor: str | None = None
    cursors: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await connection.request("tools/list", {} if cursor is None else {"cursor": cursor})
        items = page.get("tools")
        if not isinstance(items, list):
            reader.reject("*", "The result of tools/list has no list of tools.")
            return
        if not all(reader.add(item) for item in items):
            return
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return
        if cursor in cursors:
            reader.reject("*", "tools/list returned the same cursor twice; the remaining pages are left out.")
            return
        cursors.add(cursor)
    reader.reject("*", f"tools/list has more than {MAX_PAGES:,} pages; the remaining ones are left out.")


def fingerprint(server: AnyServer) -> str:
    """Identifies the program or the address, whatever else is configured."""
    where: list[Any] = [server.kind]
    where += [server.command, server.args, server.cwd] if isinstance(server, StdioServer) else [server.url]
    return hashlib.sha256(dumps(where)).hexdigest()


def pack(catalog: Catalog) -> str:
    """The catalog as the database stores it."""
    return dumps(
        {
            "of": catalog.fingerprint,
            "hello": catalog.server_info,
            "tools": catalog.tools,
            "invalid": [list(tool) for tool in catalog.invalid],
        }
    ).decode()


def unpack(body: str) -> Catalog:
    """Raises `ValueError` when the body is not a catalog."""
    try:
        stored = json.loads(body)
        invalid = tuple(Invalid(*tool) for tool in stored["invalid"])
        return Catalog(stored["of"], ServerInfo(**stored["hello"]), tuple(stored["tools"]), invalid)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"This is not a catalog: {error}.") from None


@dataclass(slots=True)
class _CatalogReader:
    """Collects the tools of one list, in its order."""

    tools: dict[str, Raw] = field(default_factory=dict)
    invalid: list[Invalid] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(self, item: Any) -> bool:
        """Accept or reject a tool; False when the list is too long."""
        self.count += 1
        try:
            self.size += len(dumps(item))
        except RecursionError:
            self.reject(f"#{self.count}", "It is nested too deep.")
            return True
        if self.count > MAX_TOOLS or self.size > MAX_BYTES:
            limits = f"{MAX_TOOLS:,} tools or {MAX_BYTES >> 20} MiB"
            self.reject("*", f"tools/list returned more than {limits}; the rest is left out.")
            return False
        reason = next(_problems(item, self.tools), None)
        if reason is None:
            # Many servers leave the type out where there are no arguments; arguments are always an object.
            self.tools[item["name"]] = item | {"inputSchema": {**item["inputSchema"], "type": "object"}}
        else:
            name = item.get("name") if isinstance(item, dict) else None
            self.reject(name if isinstance(name, str) and name else f"#{self.count}", reason)
        return True

    def reject(self, name: str, reason: str) -> None:
        if len(self.invalid) < MAX_INVALID:
            valid_name = name[:MAX_NAME].encode("utf-8", "replace").decode()
            self.invalid.append(Invalid(valid_name, reason[:MAX_REASON]))


def _problems(item: Any, tools: dict[str, Raw]) -> Iterator[str]:
    if not isinstance(item, dict):
        yield "It is not an object."
        return
    name = item.get("name")
    if not isinstance(name, str) or not name:
        yield "It has no name."
        return
    if len(name) > MAX_NAME:
        yield f"Its name has more than {MAX_NAME:,} characters."
    if not _is_unicode(name):
        yield "Its name is not valid Unicode."
    if name in tools:
        yield "The server lists another tool of this name before it, which is used."
    if not isinstance(item.get("description") or "", str):
        yield "Its description is not a string."
    schema = item.get("inputSchema")
    if not isinstance(schema, dict):
        yield "Its inputSchema is missing or not an object."
        return
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        yield f"Its inputSchema has the type {json.dumps(kind)[:80]} instead of object."


def _is_unicode(name: str) -> bool:
    """A lone surrogate cannot be stored."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
