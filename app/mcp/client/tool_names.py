"""Names: what the tools of servers are called here, legal for every provider and never the same for two.

The name of a tool depends on nothing but its own identity, as long as nobody else wants it. Those that want the same
all get a mark made of their identity, so that it does not matter who came first.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from typing import NamedTuple

PREFIX = "mcp__"
MAX = 64
HEAD = 24
"""Characters that stay of a name that is too long, before the 40 digits that stand for all of it."""
MARK = 12
LEAST = 3

_OTHER = re.compile(r"[^a-zA-Z0-9_]")


class Identity(NamedTuple):
    """A tool as its server knows it."""

    server: str
    tool: str


def assign(tools: Iterable[Identity], taken: Collection[str] = ()) -> dict[Identity, str]:
    """A name for each of these, none of them one that is taken."""
    wanted = {tool: plain(tool) for tool in tools}
    wishes = Counter(wanted.values())
    names = {tool: name for tool, name in wanted.items() if wishes[name] == 1 and name not in taken}
    used = set(names.values())
    for tool in sorted(wanted.keys() - names.keys()):
        names[tool] = _marked(tool, wanted[tool], used, taken)
        used.add(names[tool])
    return names


def aliases(names: Mapping[Identity, str], taken: Collection[str] = ()) -> dict[Identity, str]:
    """`server__tool`, for each tool that is the only one it can mean."""
    wanted = {tool: _legal(f"{tool.server}__{tool.tool}") for tool in names}
    wishes = Counter(wanted.values())
    used = set(names.values())
    return {
        tool: alias
        for tool, alias in wanted.items()
        if wishes[alias] == 1 and alias not in used and alias not in taken and LEAST <= len(alias) <= MAX
    }


def may_be_of(server: str, name: str) -> bool:
    """Whether this could be the name, or the alias, of a tool of the server."""
    return any(name.startswith(_legal(f"{mark}{server}__")[:HEAD]) for mark in ("mcp__", ""))


@lru_cache(65_536)
def plain(tool: Identity) -> str:
    """The name that a tool has unless another one wants it too."""
    raw = f"{PREFIX}{tool.server}__{tool.tool}"
    name = _legal(raw)
    return name if len(name) <= MAX else name[:HEAD] + _digits(raw)


def _marked(tool: Identity, name: str, used: Collection[str], taken: Collection[str]) -> str:
    """With a mark of its own; with another one should somebody have that name too."""
    identity = f"{tool.server}\0{tool.tool}"
    attempt = 0
    while True:
        mark = _digits(identity if not attempt else f"{identity}\0{attempt}")[:MARK]
        marked = f"{name[: MAX - MARK - 1]}_{mark}"
        if marked not in used and marked not in taken:
            return marked
        attempt += 1


def _legal(raw: str) -> str:
    return _OTHER.sub("_", raw)


def _digits(raw: str) -> str:
    return sha1(raw.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
