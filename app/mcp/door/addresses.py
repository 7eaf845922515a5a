"""Addresses: which server a resource or a prompt is of, when all servers are shown as one.

A resource keeps its own URI where only one server has it, and else is prefixed with its server's name. A template
that several servers have is prefixed too. Prompts are named as tools are.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from app.core.jsons import Raw

PREFIX = "toolcrib://mcp/"
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class Address(NamedTuple):
    """A resource as its server knows it."""

    server: str
    uri: str


def prefixed(server: str, uri: str) -> str:
    """The form that says the server. It can be read back, whatever the URI is."""
    return f"{PREFIX}{server}/{uri}"


def unprefixed(uri: str) -> Address | None:
    """The server and the URI in a prefixed form; None for any other."""
    if not uri.startswith(PREFIX):
        return None
    server, slash, rest = uri.removeprefix(PREFIX).partition("/")
    return Address(server, rest) if slash and server and rest else None


def shown(items: Sequence[Raw], field: str) -> list[Raw]:
    """Resources or templates of all servers, each with an address that says which one it is."""
    counts = Counter(item[field] for item in items if isinstance(item.get(field), str))
    found = []
    for item in items:
        uri = item.get(field)
        if isinstance(uri, str):
            is_plain = counts[uri] == 1 and not uri.startswith(PREFIX)
            found.append(item | {field: uri if is_plain else prefixed(item["server"], uri)})
    return found


def servers_of(uri: str, resources: Sequence[Raw], templates: Sequence[Raw]) -> list[str]:
    """Who has this resource: those that list it, else those that have a template for it."""
    listing = sorted({item["server"] for item in resources if item.get("uri") == uri})
    if listing:
        return listing
    return sorted({item["server"] for item in templates if fits(uri, item.get("uriTemplate"))})


def fits(uri: str, template: object) -> bool:
    """Whether a template could have given this URI. Generous, and quick whatever both look like: what stands between
    the expressions comes in this order, and up to the first with an operator what stands for one has no slash. The
    server has the last word."""
    if not isinstance(template, str):
        return False
    parts = _EXPRESSION.split(template)
    literals, operators = parts[::2], parts[1::2]
    if not operators:
        return uri == template
    if not uri.startswith(literals[0]):
        return False
    plain = next((number for number, operator in enumerate(operators) if operator), len(operators))
    at = len(literals[0])
    for number, literal in enumerate(literals[1:-1]):
        found = uri.find(literal, at)
        if found < 0 or (number < plain and "/" in uri[at:found]):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and (plain < len(operators) or "/" not in uri[at:end])
