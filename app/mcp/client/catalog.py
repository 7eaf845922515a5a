"""Catalogues: the tools a server lists. Each is looked at by itself, so that a bad one costs only itself."""

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
NOT_FOUND = -32601


class Invalid(NamedTuple):
    """A tool that cannot be offered, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a server said of itself and of its tools, with `of`: which server that was."""

    of: str
    hello: ServerInfo
    tools: tuple[Raw, ...] = ()
    invalid: tuple[Invalid, ...] = ()

    def offered(self, server: AnyServer) -> list[Raw]:
        """Without what the operator does not want of it."""
        allowed, denied = server.allowed_tools, frozenset(server.denied_tools)
        return [
            tool for tool in self.tools if tool["name"] not in denied and (allowed is None or tool["name"] in allowed)
        ]


async def read(link: Connection, server: AnyServer) -> Catalog:
    """All that it lists, within its startup time. Raises `JsonRpcError`, `LinkLost` and `TimeoutError`."""
    sorting = _Sorting()
    try:
        async with asyncio.timeout(server.startup_timeout):
            await _turn_pages(link, sorting)
    except JsonRpcError as error:
        if link.hello.has("tools") or error.code != NOT_FOUND:
            raise  # one that never said it had tools has none
    return Catalog(fingerprint(server), link.hello, tuple(sorting.kept.values()), tuple(sorting.invalid))


async def _turn_pages(link: Connection, sorting: "_Sorting") -> None:
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        params: Raw = {} if cursor is None else {"cursor": cursor}
        page = await link.request("tools/list", params)
        items = page.get("tools")
        if not isinstance(items, list):
            sorting.refuse("*", "Its list of tools is not a list.")
            return
        if not all(sorting.take(item) for item in items):
            return
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return
        if cursor in seen:
            sorting.refuse("*", "Its list leads in circles: a cursor came twice, and what follows is left out.")
            return
        seen.add(cursor)
    sorting.refuse("*", f"Its list has more than {MAX_PAGES:,} pages, and what follows is left out.")


def fingerprint(server: AnyServer) -> str:
    """What stays the same as long as it is the same program, or the same address."""
    where: list[Any] = [server.kind]
    where += [server.command, server.args, server.cwd] if isinstance(server, StdioServer) else [server.url]
    return hashlib.sha256(dumps(where)).hexdigest()


def pack(catalogue: Catalog) -> str:
    """As it is kept."""
    invalid = [list(one) for one in catalogue.invalid]
    kept = {"of": catalogue.of, "hello": catalogue.hello, "tools": catalogue.tools, "invalid": invalid}
    return dumps(kept).decode()


def unpack(body: str) -> Catalog:
    """Raises `ValueError` for what is no catalogue."""
    try:
        kept = json.loads(body)
        invalid = tuple(Invalid(*one) for one in kept["invalid"])
        return Catalog(kept["of"], ServerInfo(**kept["hello"]), tuple(kept["tools"]), invalid)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"This is no catalogue: {error}.") from None


@dataclass(slots=True)
class _Sorting:
    """The tools of one list, in its order."""

    kept: dict[str, Raw] = field(default_factory=dict)
    invalid: list[Invalid] = field(default_factory=list)
    seen: int = 0
    size: int = 0

    def take(self, item: Any) -> bool:
        """Keep it or say why not; False when the list has become too long."""
        self.seen += 1
        try:
            self.size += len(dumps(item))
        except RecursionError:
            self.refuse(f"#{self.seen}", "It is nested too deep.")
            return True
        if self.seen > MAX_TOOLS or self.size > MAX_BYTES:
            self.refuse("*", f"It lists more than {MAX_TOOLS:,} tools or {MAX_BYTES >> 20} MiB; the rest is left out.")
            return False
        name = item.get("name") if isinstance(item, dict) else None
        reason = next(_mistakes(item, self.kept), None)
        if reason is None:
            self.kept[item["name"]] = item | {"inputSchema": _of_an_object(item["inputSchema"])}
        else:
            self.refuse(name if isinstance(name, str) and name else f"#{self.seen}", reason)
        return True

    def refuse(self, name: str, reason: str) -> None:
        if len(self.invalid) < MAX_INVALID:
            clean = name[:MAX_NAME].encode("utf-8", "replace").decode()
            self.invalid.append(Invalid(clean, reason[:MAX_REASON]))


def _mistakes(item: Any, kept: dict[str, Raw]) -> Iterator[str]:
    if not isinstance(item, dict):
        yield "It is not an object."
        return
    name = item.get("name")
    if not isinstance(name, str) or not name:
        yield "It has no name."
        return
    if len(name) > MAX_NAME:
        yield f"Its name has more than {MAX_NAME:,} characters."
    if not _is_text(name):
        yield "Its name is not text."
    if name in kept:
        yield "Another tool of this server has the same name; that one is used."
    if not isinstance(item.get("description") or "", str):
        yield "Its description is not text."
    schema = item.get("inputSchema")
    if not isinstance(schema, dict):
        yield "It does not say what arguments it takes: its inputSchema is not an object."
    elif not _may_be_an_object(schema.get("type", "object")):
        yield f"Its inputSchema describes no object, but {json.dumps(schema['type'])[:80]}."


def _is_text(name: str) -> bool:
    """Half a character is none, and would not come back from the store as it is."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _may_be_an_object(type: Any) -> bool:
    return type == "object" or (isinstance(type, list) and "object" in type)


def _of_an_object(schema: Raw) -> Raw:
    """Many servers leave the type out where there are no arguments; arguments are always an object."""
    return {**schema, "type": "object"}
