"""HTTP requests built from arguments: a definition is prepared once, and filled at each call."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.core.custom_tools import HttpDefinition, Placement, SecretHeader
from app.core.errors import InvalidArgs
from app.core.ports import HttpRequest, SecretUse
from app.core.secrets import check_name as check_secret_name
from app.core.util.headers import check_header, check_name, check_secret
from app.core.util.json_codec import dumps
from app.core.util.urls import read_url

SEPARATORS = {"comma": ",", "space": " ", "pipe": "|"}
CONTENT_TYPES = {"json": "application/json", "form": "application/x-www-form-urlencoded"}
QUERY_METHODS = ("GET", "HEAD", "DELETE")

_URL = re.compile(r"(?P<base>[A-Za-z]+://[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_SLOT = re.compile(r"\{([^{}/]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A request with slots for arguments."""

    method: str
    host: str
    base: str
    path: str
    query: str
    slots: dict[str, str]
    placements: dict[str, Placement]
    fixed_query: tuple[tuple[str, str], ...]
    fixed_headers: tuple[tuple[str, str], ...]
    secrets: tuple[SecretUse, ...]
    encoding: str
    has_body: bool
    timeout: float

    def placement(self, name: str) -> Placement:
        """Where an argument goes; one that the schema does not name goes by the method."""
        return self.placements.get(name) or _by_method(self.method)

    @property
    def fixed_query_names(self) -> set[str]:
        """Parameters that no argument can set."""
        return {name for name, _ in self.fixed_query} | {use.name for use in self.secrets if use.into == "query"}


def prepare(definition: HttpDefinition) -> Template:
    """The template of a definition; raises `ValueError` with a sentence when it cannot be a request."""
    match = _URL.fullmatch(definition.url)
    if match is None:
        raise ValueError("url: must start with http:// or https:// and have no fragment.")
    if "{" in match["base"] or "{" in (match["query"] or ""):
        raise ValueError("url: {name} is allowed in the path only; put query arguments into `places`.")
    slots = _SLOT.findall(match["path"])
    if {"{", "}"} & set(_SLOT.sub("", match["path"])):
        raise ValueError("url: every { in the path needs a name and a closing }.")
    parsed = read_url(_SLOT.sub("x", definition.url))
    placements = _placements(definition, slots)
    return Template(
        method=definition.method,
        host=parsed.host,
        base=parsed.origin,
        path=match["path"] or "/",
        query=match["query"] or "",
        slots={placement.name or name: name for name, placement in placements.items() if placement.place == "path"},
        placements=placements,
        fixed_query=tuple((name, text) for name, text in definition.query.items() if isinstance(text, str)),
        fixed_headers=tuple((name, text) for name, text in definition.headers.items() if isinstance(text, str)),
        secrets=_check_fixed(definition, placements),
        encoding=definition.encoding,
        has_body=any(placement.place == "body" for placement in placements.values()),
        timeout=definition.timeout,
    )


def fill(template: Template, args: dict[str, Any], trace: str | None = None) -> HttpRequest:
    """The request of one call. Raises `InvalidArgs`."""
    query, headers = list(template.fixed_query), dict(template.fixed_headers)
    data: bytes | None = None
    body: Any = {} if template.has_body else None
    for name, value in args.items():
        placement = template.placement(name)
        wire = placement.name or name
        match placement.place:
            case "query":
                query += _unfixed(name, _pairs(wire, value, placement.style), template)
            case "header" if value is not None:
                headers[wire] = _joined(name, value)
            case "body":
                body = (body or {}) | {wire: value}
            case "whole_body":
                data = _encode(template, value)
    if body is not None:
        data = _encode(template, body)
    names = {name.lower() for name in headers}
    if data is not None and "content-type" not in names:
        headers["Content-Type"] = CONTENT_TYPES[template.encoding]
    if trace and "traceparent" not in names:
        headers["traceparent"] = trace
    return HttpRequest(
        method=template.method,
        url=template.base + _path(template, args) + _query(template.query, query),
        headers=headers,
        secrets=template.secrets,
        body=data,
        timeout=template.timeout,
    )


def _placements(definition: HttpDefinition, slots: list[str]) -> dict[str, Placement]:
    properties = definition.parameters.get("properties", {})
    if stray := next((name for name in definition.places if name not in properties), None):
        raise ValueError(f"places: {stray!r} is not among the parameters.")
    placements = {name: _placement(definition, name, slots) for name in properties}
    users: dict[tuple[str, str], str] = {}
    for name, one in placements.items():
        key = (one.place, (one.name or name).lower() if one.place == "header" else one.name or name)
        if key in users:
            raise ValueError(f"places: {users[key]!r} and {name!r} are both sent as {key[1]!r} in the {one.place}.")
        users[key] = name
    filled = {name for place, name in users if place == "path"}
    if missing := next((slot for slot in slots if slot not in filled), None):
        raise ValueError(f"url: {{{missing}}} is not among the parameters.")
    if stray := next((name for name in filled if name not in slots), None):
        raise ValueError(f"places: the path of the URL has no {{{stray}}}.")
    _check_body(definition, placements)
    return placements


def _placement(definition: HttpDefinition, name: str, slots: list[str]) -> Placement:
    placement = definition.places.get(name)
    if isinstance(placement, Placement):
        return placement
    if placement is not None:
        return Placement(place=placement)
    return Placement(place="path") if name in slots else _by_method(definition.method)


def _by_method(method: str) -> Placement:
    return Placement(place="query" if method in QUERY_METHODS else "body")


def _check_body(definition: HttpDefinition, placements: dict[str, Placement]) -> None:
    places = [one.place for one in placements.values()]
    if definition.method in ("GET", "HEAD") and {"body", "whole_body"} & set(places):
        raise ValueError(f"places: a {definition.method} request has no body.")
    if "whole_body" in places and (places.count("whole_body") > 1 or "body" in places):
        raise ValueError("places: `whole_body` excludes other arguments in the body.")


def _check_fixed(definition: HttpDefinition, placements: dict[str, Placement]) -> tuple[SecretUse, ...]:
    """The secrets to send, after checking that no argument overrides a fixed header or parameter."""
    fixed = {("header", name.lower()) for name in definition.headers} | {("query", name) for name in definition.query}
    for name, one in placements.items():
        wire = one.name or name
        if one.place == "header":
            check_name(wire)
        if (one.place, wire.lower() if one.place == "header" else wire) in fixed:
            raise ValueError(f"places: {name!r} would override the fixed {wire!r}.")
    for name, text in definition.headers.items():
        check_header(name, text if isinstance(text, str) else "")
    return tuple(_uses(definition))


def _uses(definition: HttpDefinition) -> Iterator[SecretUse]:
    kinds = (("header", definition.headers), ("query", definition.query), ("cookie", definition.cookies))
    for into, values in kinds:
        for name, one in values.items():
            if isinstance(one, SecretHeader):
                check_secret_name(one.secret)
                use = SecretUse(one.secret, into, name, one.form)  # type: ignore[arg-type]
                check_secret(use)
                yield use


def _path(template: Template, args: dict[str, Any]) -> str:
    """The filled path. An argument stays within its segment."""

    def replace(slot: re.Match[str]) -> str:
        name = template.slots[slot[1]]
        text = _joined(name, args.get(name))
        if not text:
            raise InvalidArgs(f"`{name}` is part of the URL's path and cannot be empty.", details={"fields": [name]})
        if {".", ".."} & set(re.split(r"[/\\]", text)):
            raise InvalidArgs(f"`{name}` is part of the URL's path and cannot contain . or .. as a segment.")
        return _quote(text)

    return _SLOT.sub(replace, template.path)


def _query(fixed: str, pairs: list[tuple[str, str]]) -> str:
    encoded = [f"{_quote(name)}={_quote(text)}" for name, text in pairs]
    query = "&".join([*([fixed] if fixed else []), *encoded])
    return f"?{query}" if query else ""


def _quote(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _unfixed(name: str, pairs: Iterator[tuple[str, str]], template: Template) -> Iterator[tuple[str, str]]:
    for wire, text in pairs:
        if wire in template.fixed_query_names:
            raise InvalidArgs(f"`{name}` would override the fixed {wire!r}; leave it out.", details={"fields": [name]})
        yield wire, text


def _pairs(wire: str, value: Any, style: str) -> Iterator[tuple[str, str]]:
    """An argument as query parameters, without nulls."""
    match value:
        case None:
            return
        case dict() if style == "members":
            for member, inner in value.items():
                yield from _pairs(member, inner, "repeat")
        case dict() if style == "deep":
            for member, inner in value.items():
                yield from _pairs(f"{wire}[{member}]", inner, style)
        case dict() if style in SEPARATORS:
            yield wire, SEPARATORS[style].join(_text(part) for pair in value.items() for part in pair)
        case list() if style in SEPARATORS:
            yield wire, SEPARATORS[style].join(map(_text, value))
        case list() if style != "json":
            for item in value:
                yield from _pairs(f"{wire}[]" if style == "deep" else wire, item, style)
        case _:
            yield wire, _text(value)


def _joined(name: str, value: Any) -> str:
    if isinstance(value, dict):
        raise InvalidArgs(
            f"`{name}` cannot be an object: it is sent in the path or a header.", details={"fields": [name]}
        )
    return ",".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value).decode()


def _encode(template: Template, body: Any) -> bytes:
    if template.encoding == "json":
        return dumps(body)
    if not isinstance(body, dict):
        raise InvalidArgs("The body is a form and must be an object.")
    pairs = [pair for name, value in body.items() for pair in _pairs(name, value, "repeat")]
    return _query("", pairs).removeprefix("?").encode()
