"""Names of MCP tools in the registry: valid for every provider, and unique.

A tool's name depends only on its own identity, as long as no other tool has the same name. Tools with the same name all
get a hash of their identity appended, so that their order does not matter.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from typing import NamedTuple

PREFIX = "mcp__"
MIN_LENGTH, MAX_LENGTH = 3, 64
HEAD = 24
"""Characters that stay of a name that is too long, before the 40 digits of its hash."""
HASH_DIGITS = 12

_INVALID = re.compile(r"[^a-zA-Z0-9_]")


class Identity(NamedTuple):
    """A tool by its server and the server's name for it."""

    server: str
    tool: str


def assign(tools: Iterable[Identity], taken: Collection[str] = ()) -> dict[Identity, str]:
    """A unique name for each of these tools, none of them a name that is taken."""
    preferred = {tool: plain(tool) for tool in tools}
    counts = Counter(preferred.values())
    names = {tool: name for tool, name in preferred.items() if counts[name] == 1 and name not in taken}
    used = {*names.values(), *taken}
    for tool in sorted(preferred.keys() - names.keys()):
        names[tool] = _with_hash(tool, preferred[tool], used)
        used.add(names[tool])
    return names


def aliases(names: Mapping[Identity, str], taken: Collection[str] = ()) -> dict[Identity, str]:
    """`server__tool` for each tool where that is unambiguous."""
    preferred = {tool: _valid(f"{tool.server}__{tool.tool}") for tool in names}
    counts = Counter(preferred.values())
    used = {*names.values(), *taken}
    return {
        tool: alias
        for tool, alias in preferred.items()
        if counts[alias] == 1 and alias not in used and MIN_LENGTH <= len(alias) <= MAX_LENGTH
    }


def may_be_of(server: str, name: str) -> bool:
    """Whether this could be the name or the alias of a tool of the server."""
    return any(name.startswith(_valid(f"{prefix}{server}__")[:HEAD]) for prefix in (PREFIX, ""))


@lru_cache(65_536)
def plain(tool: Identity) -> str:
    """The name of a tool unless another one has the same."""
    full = f"{PREFIX}{tool.server}__{tool.tool}"
    name = _valid(full)
    return name if len(name) <= MAX_LENGTH else name[:HEAD] + _hash(full)


def _with_hash(tool: Identity, name: str, used: Collection[str]) -> str:
    identity = f"{tool.server}\0{tool.tool}"
    attempt = 0
    while True:
        digits = _hash(identity if not attempt else f"{identity}\0{attempt}")[:HASH_DIGITS]
        candidate = f"{name[: MAX_LENGTH - HASH_DIGITS - 1]}_{digits}"
        if candidate not in used:
            return candidate
        attempt += 1


def _valid(text: str) -> str:
    return _INVALID.sub("_", text)


def _hash(text: str) -> str:
    return sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
