"""Headers of the newer protocol, which repeat what a message is about for those who only pass it on.

A tool says with `x-mcp-header` in its schema which of its arguments are repeated.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.core.util.headers import NAME
from app.core.util.json_codec import Raw

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
ANNOTATION = "x-mcp-header"
HEADER_MISMATCH = -32020
PLAIN = re.compile(r"[\x20-\x7e]*")
WRAPPED = re.compile(r"=\?base64\?.*\?=")
TYPES = frozenset({"string", "integer", "boolean"})
ONE_WITHIN = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
SOME_WITHIN = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED_WITHIN = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})

Path = tuple[str, ...]


class RepeatedArguments:
    """Which arguments of which tools are repeated, as far as the tools were listed."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[Path, str]] = {}

    def learn(self, listed: Any) -> None:
        """Of a page of `tools/list`. A tool that says it wrongly repeats nothing."""
        for tool in listed if isinstance(listed, list) else ():
            if not isinstance(tool, dict) or not isinstance(name := tool.get("name"), str):
                continue
            self._tools.pop(name, None)
            try:
                found = repeated(tool.get("inputSchema"))
            except ValueError:
                continue
            if found:
                self._tools[name] = found

    def of(self, method: str, params: Raw) -> dict[str, str]:
        """The headers of a request."""
        headers = {"Mcp-Method": method}
        name = params.get(NAMED_BY.get(method, ""))
        if not isinstance(name, str):
            return headers
        headers["Mcp-Name"] = written(name)
        if method == "tools/call" and (found := self._tools.get(name)):
            for path, header in found.items():
                value = _shown(_at(params.get("arguments"), path))
                if value is not None:
                    headers[f"Mcp-Param-{header}"] = written(value)
        return headers


def repeated(schema: Any) -> dict[Path, str]:
    """Which arguments a schema wants repeated, and in which headers. Raises `ValueError` where that cannot be."""
    found: dict[Path, str] = {}
    for path, part in _parts(schema):
        if ANNOTATION not in part:
            continue
        header = part[ANNOTATION]
        if not path:
            raise ValueError(f"{ANNOTATION} stands where no argument has its fixed place.")
        where = ".".join(path)
        if not isinstance(header, str) or not NAME.fullmatch(header):
            raise ValueError(f"{ANNOTATION} of {where} cannot be the name of a header.")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError(f"{ANNOTATION} of {where}: only a string, an integer or a boolean can be repeated.")
        if header.lower() in {one.lower() for one in found.values()}:
            raise ValueError(f"{ANNOTATION} {header} is there twice.")
        found[path] = header
    return found


def written(value: str) -> str:
    """Text as a header carries it; in base64 where it could not be told from another otherwise."""
    if PLAIN.fullmatch(value) and value == value.strip() and not WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def _parts(schema: Any) -> Iterator[tuple[Path | None, Raw]]:
    """Each schema in a schema, with the way to it as long as that leads through properties alone."""
    waiting: list[tuple[Path | None, Any]] = [((), schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        for word, value in part.items():
            if word == "properties" and isinstance(value, dict):
                waiting += [((*path, name) if path is not None else None, one) for name, one in value.items()]
            elif word in ONE_WITHIN:
                waiting.append((None, value))
            elif word in SOME_WITHIN and isinstance(value, list):
                waiting += [(None, one) for one in value]
            elif word in NAMED_WITHIN and isinstance(value, dict):
                waiting += [(None, one) for one in value.values()]


def _at(arguments: Any, path: Path) -> Any:
    for name in path:
        arguments = arguments.get(name) if isinstance(arguments, Mapping) else None
    return arguments


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python writes
        return None
