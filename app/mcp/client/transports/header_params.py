"""HTTP headers of 2026-07-28 that repeat parts of a message for proxies.

A tool marks with `x-mcp-header` in its schema which of its arguments are sent as headers, too.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.core.util.headers import NAME
from app.core.util.json_codec import Raw

NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
ANNOTATION = "x-mcp-header"
HEADER_MISMATCH = -32020
PLAIN = re.compile(r"[\x20-\x7e]*")
ENCODED = re.compile(r"=\?base64\?.*\?=")
TYPES = frozenset({"string", "integer", "boolean"})
SUBSCHEMA = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
SUBSCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SUBSCHEMA_MAP = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})

Path = tuple[str, ...]


class HeaderParams:
    """Which arguments of the listed tools are sent as headers."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[Path, str]] = {}

    def set_tools(self, tools: Any) -> None:
        """Read a page of `tools/list`. A tool with an invalid annotation gets no headers."""
        for tool in tools if isinstance(tools, list) else ():
            if not isinstance(tool, dict) or not isinstance(name := tool.get("name"), str):
                continue
            self._tools.pop(name, None)
            try:
                headers = header_params(tool.get("inputSchema"))
            except ValueError:
                continue
            if headers:
                self._tools[name] = headers

    def of(self, method: str, params: Raw) -> dict[str, str]:
        """The headers of a request."""
        headers = {"Mcp-Method": method}
        name = params.get(NAME_PARAMS.get(method, ""))
        if not isinstance(name, str):
            return headers
        headers["Mcp-Name"] = encode_value(name)
        if method == "tools/call":
            for path, header in self._tools.get(name, {}).items():
                value = _argument_text(params.get("arguments"), path)
                if value is not None:
                    headers[f"Mcp-Param-{header}"] = encode_value(value)
        return headers


def header_params(schema: Any) -> dict[Path, str]:
    """The arguments that a schema marks, and their headers. Raises `ValueError` for an invalid annotation."""
    headers: dict[Path, str] = {}
    for path, part in _subschemas(schema):
        if ANNOTATION not in part:
            continue
        header = part[ANNOTATION]
        if not path:
            raise ValueError(f"{ANNOTATION} is only allowed on a property of an object.")
        where = ".".join(path)
        if not isinstance(header, str) or not NAME.fullmatch(header):
            raise ValueError(f"{ANNOTATION} of {where} is not a valid header name.")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError(f"{ANNOTATION} of {where}: the type must be string, integer or boolean.")
        if header.lower() in {other.lower() for other in headers.values()}:
            raise ValueError(f"{ANNOTATION} {header} is used twice.")
        headers[path] = header
    return headers


def encode_value(value: str) -> str:
    """A header value; base64 where the plain text would not be unambiguous."""
    if PLAIN.fullmatch(value) and value == value.strip() and not ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def _subschemas(schema: Any) -> Iterator[tuple[Path | None, Raw]]:
    """Each subschema, with its path as long as that leads through properties only."""
    pending: list[tuple[Path | None, Any]] = [((), schema)]
    while pending:
        path, part = pending.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        for word, value in part.items():
            if word == "properties" and isinstance(value, dict):
                pending += [((*path, name) if path is not None else None, one) for name, one in value.items()]
            elif word in SUBSCHEMA:
                pending.append((None, value))
            elif word in SUBSCHEMA_LIST and isinstance(value, list):
                pending += [(None, one) for one in value]
            elif word in SUBSCHEMA_MAP and isinstance(value, dict):
                pending += [(None, one) for one in value.values()]


def _argument_text(arguments: Any, path: Path) -> str | None:
    value = arguments
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python converts
        return None
