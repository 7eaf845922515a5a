"""`python lists.py WAY`: servers whose list of tools is not what it should be."""

import itertools
import sys
from pathlib import Path
from typing import Any

if (root := str(Path(__file__).resolve().parents[3])) not in sys.path:
    sys.path[0] = root  # instead of this folder

from tests.mcp.hostile.rpc import ANYTHING, Raw, Server, arguments, text, variant

LONG = "a_name_of_two_hundred_characters_".ljust(199, "x")
UNICODE = ("日本", "日本語", "ünï", "🛠️", "ДА", "e\u0301", "\u00e9", "a\u200bb", "\u202eevil")
COLLIDING = ("read.file", "read/file", "read file", "read-file", "read_file", "Read_File", "read__file")
INVALID: dict[str, Any] = {
    "no_schema": {"name": "no_schema"},
    "null_schema": {"name": "null_schema", "inputSchema": None},
    "text_schema": {"name": "text_schema", "inputSchema": "object"},
    "list_schema": {"name": "list_schema", "inputSchema": []},
    "array_type": {"name": "array_type", "inputSchema": {"type": "array"}},
    "bad_type": {"name": "bad_type", "inputSchema": {"type": "object", "properties": {"a": {"type": "unheard-of"}}}},
    "bad_pattern": {"name": "bad_pattern", "inputSchema": {"type": "object", "properties": {"a": {"pattern": "("}}}},
    "bad_ref": {"name": "bad_ref", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}},
    "remote_ref": {"name": "remote_ref", "inputSchema": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "bad_required": {"name": "bad_required", "inputSchema": {"type": "object", "required": "a"}},
}
NAMELESS: list[Any] = [
    {"inputSchema": ANYTHING},
    {"name": "", "inputSchema": ANYTHING},
    {"name": None, "inputSchema": ANYTHING},
    {"name": 7, "inputSchema": ANYTHING},
    {"name": ["a"], "inputSchema": ANYTHING},
    None,
    "echo",
    [],
    17,
]


def add_named(server: Server, *names: str) -> None:
    """Tools that answer with their own raw name and with what they got."""
    for name in names:
        server.add(name, lambda server, request: text(f"{request['params']['name']} {arguments(request)}"))


def invalid(server: Server) -> None:
    """Good tools, and all the bad ones among them. `empty` has no types at all, which says that anything goes."""
    add_named(server, "first", "empty")
    server.tools[-1]["inputSchema"] = {}
    server.tools += [*INVALID.values(), *NAMELESS]
    add_named(server, "last")


def duplicates(server: Server) -> None:
    """One name three times, with different words."""
    add_named(server, "same", "other", "same", "same")
    for number, tool in enumerate(server.tools):
        tool["description"] = f"number {number}"


def long(server: Server) -> None:
    """Two names of two hundred characters that differ in the last one only."""
    add_named(server, f"{LONG}a", f"{LONG}b", "a" * 200)


def unicode(server: Server) -> None:
    add_named(server, *UNICODE)


def colliding(server: Server) -> None:
    """Names that are the same once everything unusual in them is replaced."""
    add_named(server, *COLLIDING)


def colliding_reversed(server: Server) -> None:
    add_named(server, *reversed(COLLIDING))


def thousands(server: Server) -> None:
    add_named(server, *(f"tool_{number:04}" for number in range(5000)))


def endless(server: Server) -> None:
    """Each page says that there is another one, with another tool."""
    numbers = itertools.count()

    def page(server: Server, request: Raw) -> Raw:
        number = next(numbers)
        tools = [*server.tools, {"name": f"tool_{number}", "inputSchema": ANYTHING}]
        return {"tools": tools if number == 0 else tools[-1:], "nextCursor": f"page-{number}"}

    server.methods["tools/list"] = page


def circling(server: Server) -> None:
    """The next page is always the same one."""
    server.methods["tools/list"] = lambda server, request: {"tools": server.tools, "nextCursor": "again"}


def shapeless(server: Server) -> None:
    """The list is no list."""
    server.methods["tools/list"] = lambda server, request: {"tools": {"echo": {}}}


def refused(server: Server) -> None:
    def refuse(server: Server, request: Raw) -> None:
        server.refuse(request["id"], -32603, "I lost my list")

    server.methods["tools/list"] = refuse


def silent(server: Server) -> None:
    """Never says what its tools are."""
    server.methods["tools/list"] = lambda server, request: None


WAYS = {
    way.__name__: way
    for way in (
        *(invalid, duplicates, long, unicode, colliding, colliding_reversed),
        *(thousands, endless, circling, shapeless, refused, silent),
    )
}

if __name__ == "__main__":
    server = Server("lists")
    WAYS[variant()](server)
    server.run()
