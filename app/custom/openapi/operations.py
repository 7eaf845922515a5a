"""Operations of an API description, each as the definition of an http tool."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.core.custom_tools import HttpDefinition, Place, Placement, SecretHeader, Style
from app.core.util.headers import OWN
from app.custom.openapi.schemas import Components
from app.custom.openapi.security import Credential

IGNORED_HEADERS = OWN | {"accept", "content-type", "authorization"}
"""What a description may say of these is not for the caller."""
MAX_DESCRIPTION = 16_384
MAX_TITLE = 128
JSON = re.compile(r"(application/json|[^/]+/[^/]*\+json|\*/\*|application/\*)(;.*)?", re.IGNORECASE)
FORM = "application/x-www-form-urlencoded"
ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ORDER: tuple[Place, ...] = ("path", "query", "header", "body")


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the paths, with what it inherits."""

    method: str
    path: str
    said: dict[str, Any]
    shared: list[Any]
    server: str

    @property
    def place(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class Parameter:
    """One thing the caller says: where it goes, under which name, and what it may be."""

    place: Place
    wire: str
    schema: Any
    is_required: bool = False
    style: Style = "repeat"


@dataclass(slots=True)
class Body:
    """The body as parameters."""

    parameters: list[Parameter] = field(default_factory=list)
    encoding: str = "json"


def define(operation: Operation, name: str, components: Components, secrets: list[Credential]) -> HttpDefinition:
    """The definition of an operation. Raises `ValueError` with the reason why there can be none."""
    body = _body(operation, components)
    fixed = {(one.into, one.name.lower()) for one in secrets}
    parameters = [
        one
        for one in (*_parameters(operation, components), *body.parameters)
        if (one.place, one.wire.lower()) not in fixed
    ]
    named = _name(parameters)
    properties, defs = components.gather({name: one.schema for name, one in named.items()})
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name, one in named.items() if one.is_required]:
        schema["required"] = required
    schema["additionalProperties"] = False
    return HttpDefinition.model_validate(
        {
            "kind": "http",
            "name": name,
            "title": _text(operation.said.get("summary"))[:MAX_TITLE] or None,
            "description": _describe(operation),
            "parameters": schema | ({"$defs": defs} if defs else {}),
            "method": operation.method,
            "url": operation.server.rstrip("/") + _path(operation.path),
            "places": {name: _placement(name, one) for name, one in named.items()},
            "encoding": body.encoding,
            "headers": _secrets(secrets, "header"),
            "query": _secrets(secrets, "query"),
            "cookies": _secrets(secrets, "cookie"),
        }
    )


def _parameters(operation: Operation, components: Components) -> Iterator[Parameter]:
    """Parameters of the path, the query and the headers; the operation's own before the path's."""
    own = operation.said.get("parameters", [])
    if not isinstance(own, list):
        raise ValueError("its parameters are no list")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for given in (*operation.shared, *own):
        one = components.resolve(given)
        place, wire = one.get("in"), one.get("name")
        if not isinstance(place, str) or not isinstance(wire, str):
            raise ValueError("one of its parameters has no name or no place")
        found[place, wire] = one
    for (place, wire), one in found.items():
        is_required = place == "path" or one.get("required") is True
        if place == "cookie":
            if is_required:
                raise ValueError(f"it needs the cookie {wire!r}, and arguments are not sent as cookies")
        elif place not in ("path", "query", "header"):
            raise ValueError(f"its parameter {wire!r} is in {place!r}, which is not known")
        elif place != "header" or wire.lower() not in IGNORED_HEADERS:
            schema, style = _content(one, components)
            yield Parameter(place, wire, schema, is_required, style)  # type: ignore[arg-type]


def _content(one: dict[str, Any], components: Components) -> tuple[Any, Style]:
    """The schema of a parameter, and how it is written."""
    schema, style = one.get("schema"), _style(one)
    content = one.get("content")
    if schema is None and isinstance(content, dict) and content:
        schema, style = next(iter(content.values())).get("schema"), "json"
    schema = schema if isinstance(schema, dict) else {}
    about = _text(one.get("description"))
    return schema | ({"description": about} if about else {}), style


def _style(one: dict[str, Any]) -> Style:
    usual = "form" if one.get("in") == "query" else "simple"
    style = one.get("style", usual)
    match one.get("in"), style:
        case "query", "form":
            is_list = _kind(one.get("schema")) != "object"
            if one.get("explode", True):
                return "repeat" if is_list else "members"
            return "comma"
        case "query", "spaceDelimited":
            return "space"
        case "query", "pipeDelimited":
            return "pipe"
        case "query", "deepObject":
            return "deep"
        case _, "simple":
            return "repeat"
        case _:
            raise ValueError(f"its parameter {one.get('name')!r} is written in the style {style!r}")


def _kind(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else None


def _body(operation: Operation, components: Components) -> Body:
    """A body that is an object becomes one parameter for each member; any other is the parameter `body`."""
    if operation.said.get("requestBody") is None:
        return Body()
    given = components.resolve(operation.said["requestBody"])
    content, is_required = given.get("content"), given.get("required") is True
    if not isinstance(content, dict) or not content or operation.method in ("GET", "HEAD"):
        return Body()
    media = next((type for type in content if JSON.fullmatch(type)), None)
    encoding = "json" if media else "form"
    if media is None and (media := next((type for type in content if type.startswith(FORM)), None)) is None:
        if is_required:
            raise ValueError(f"its body is {', '.join(content)}, and only JSON and forms are sent")
        return Body()
    schema = (content[media] or {}).get("schema", {})
    members = _members(schema, components)
    if members is None:
        about = {"description": _text(given.get("description"))} if given.get("description") else {}
        return Body([Parameter("whole_body", "body", about | schema, is_required)], encoding)
    needed = set(members.get("required", ())) if is_required else set()
    found = [
        Parameter("body", name, inner, name in needed)
        for name, inner in members["properties"].items()
        if not (isinstance(inner, dict) and inner.get("readOnly") is True)
    ]
    return Body(found, encoding)


def _members(schema: Any, components: Components) -> dict[str, Any] | None:
    """The properties of an object and which of them are required; None when it may be something else, too."""
    if not isinstance(schema, dict):
        return None
    schema = components.resolve(schema)
    if schema.get("nullable") is True or not {"anyOf", "oneOf", "not", "if"}.isdisjoint(schema):
        return None
    if schema.get("type", "object") != "object" or isinstance(schema.get("additionalProperties"), dict):
        return None
    properties: dict[str, Any] = {}
    required = list(schema.get("required") or ())
    for part in schema.get("allOf", ()):
        inner = _members(part, components)
        if inner is None:
            return None
        properties |= inner["properties"]
        required += inner["required"]
    properties |= schema.get("properties") or {}
    if not properties or schema.get("additionalProperties") is True:
        return None
    return {"properties": properties, "required": required}


def _name(parameters: list[Parameter]) -> dict[str, Parameter]:
    """Every parameter under a name of its own that each provider takes; what comes first keeps the plain one."""
    named: dict[str, Parameter] = {}
    for place in (*ORDER, "whole_body"):
        for one in (one for one in parameters if one.place == place):
            plain = one.wire if ARGUMENT.fullmatch(one.wire) else re.sub(r"[^A-Za-z0-9_.-]+", "_", one.wire)[:56]
            name, count = plain.strip("_") if plain != one.wire else plain, 2
            name = name or place
            if name in named:
                name = f"{name}_{place}"[:64]
            while name in named:
                name, count = f"{name[:60]}_{count}", count + 1
            named[name] = one
    return named


def _placement(name: str, one: Parameter) -> Place | Placement:
    is_plain = one.style == "repeat" and (one.wire == name or one.place == "whole_body")
    return one.place if is_plain else Placement(place=one.place, name=one.wire, style=one.style)


def _path(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def _secrets(secrets: list[Credential], into: str) -> dict[str, SecretHeader]:
    return {one.name: one.secret for one in secrets if one.into == into}


def _describe(operation: Operation) -> str:
    summary, more = _text(operation.said.get("summary")), _text(operation.said.get("description"))
    told = summary if not more or more == summary else f"{summary}\n\n{more}" if summary else more
    return told[:MAX_DESCRIPTION] or operation.place


def _text(given: Any) -> str:
    return given.strip() if isinstance(given, str) else ""
