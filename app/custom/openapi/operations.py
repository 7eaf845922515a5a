"""An operation of an API description as the definition of an HTTP tool."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.core.custom_tools import HttpDefinition, Place, Placement, SecretHeader, Style
from app.core.util.headers import OWN
from app.custom.openapi.schemas import Components
from app.custom.openapi.security import Credential

IGNORED_HEADERS = OWN | {"accept", "content-type", "authorization"}
"""Set by the service or by secrets, not by the model."""
MAX_DESCRIPTION = 16_384
MAX_TITLE = 128
JSON = re.compile(r"(application/json|[^/]+/[^/]*\+json|\*/\*|application/\*)(;.*)?", re.IGNORECASE)
FORM = "application/x-www-form-urlencoded"
ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ORDER: tuple[Place, ...] = ("path", "query", "header", "body")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, with what it inherits from its path and document."""

    method: str
    path: str
    spec: dict[str, Any]
    path_parameters: list[Any]
    server: str

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class Parameter:
    """A parameter: where it goes, its name in the request (`wire`), and its schema."""

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
    """The definition of an operation; raises `ValueError` with the reason when there can be none."""
    body = _body(operation, components)
    fixed = {(credential.into, credential.name.lower()) for credential in secrets}
    parameters = [
        parameter
        for parameter in (*_parameters(operation, components), *body.parameters)
        if (parameter.place, parameter.wire.lower()) not in fixed
    ]
    named = _assign_names(parameters)
    properties, defs = components.gather({name: parameter.schema for name, parameter in named.items()})
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name, parameter in named.items() if parameter.is_required]:
        schema["required"] = required
    schema["additionalProperties"] = False
    summary, details = _text(operation.spec.get("summary")), _text(operation.spec.get("description"))
    paragraphs = dict.fromkeys(text for text in (summary, details) if text)
    return HttpDefinition.model_validate(
        {
            "kind": "http",
            "name": name,
            "title": _text(operation.spec.get("summary"))[:MAX_TITLE] or None,
            "description": "\n\n".join(paragraphs)[:MAX_DESCRIPTION] or operation.label,
            "parameters": schema | ({"$defs": defs} if defs else {}),
            "method": operation.method,
            "url": f"{operation.server.rstrip('/')}/{operation.path.removeprefix('/')}",
            "places": {name: _placement(name, parameter) for name, parameter in named.items()},
            "encoding": body.encoding,
            "headers": _secrets(secrets, "header"),
            "query": _secrets(secrets, "query"),
            "cookies": _secrets(secrets, "cookie"),
        }
    )


def _parameters(operation: Operation, components: Components) -> Iterator[Parameter]:
    """Parameters of path, query and headers; the operation's own override those of its path item."""
    own = operation.spec.get("parameters", [])
    if not isinstance(own, list):
        raise ValueError("its parameters are not a list")
    specs: dict[tuple[str, str], dict[str, Any]] = {}
    for raw in (*operation.path_parameters, *own):
        spec = components.resolve(raw)
        place, wire = spec.get("in"), spec.get("name")
        if not isinstance(place, str) or not isinstance(wire, str):
            raise ValueError("one of its parameters has no `name` or no `in`")
        specs[place, wire] = spec
    for (place, wire), spec in specs.items():
        is_required = place == "path" or spec.get("required") is True
        if place == "cookie":
            if is_required:
                raise ValueError(f"it needs the cookie {wire!r}; arguments cannot be sent as cookies")
        elif place not in ("path", "query", "header"):
            raise ValueError(f"its parameter {wire!r} is in {place!r}, which is not known")
        elif place != "header" or wire.lower() not in IGNORED_HEADERS:
            schema, style = _schema_and_style(spec)
            yield Parameter(place, wire, schema, is_required, style)  # type: ignore[arg-type]


def _schema_and_style(spec: dict[str, Any]) -> tuple[Any, Style]:
    schema, style = spec.get("schema"), _style(spec)
    content = spec.get("content")
    if schema is None and isinstance(content, dict) and content:
        schema, style = next(iter(content.values())).get("schema"), "json"
    schema = schema if isinstance(schema, dict) else {}
    description = _text(spec.get("description"))
    return schema | ({"description": description} if description else {}), style


def _style(spec: dict[str, Any]) -> Style:
    default = "form" if spec.get("in") == "query" else "simple"
    style = spec.get("style", default)
    match spec.get("in"), style:
        case "query", "form":
            if spec.get("explode", True):
                schema = spec.get("schema")
                is_object = isinstance(schema, dict) and schema.get("type") == "object"
                return "members" if is_object else "repeat"
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
            raise ValueError(f"its parameter {spec.get('name')!r} has the unsupported style {style!r}")


def _body(operation: Operation, components: Components) -> Body:
    """An object becomes one parameter per member; any other body is the parameter `body`."""
    if operation.spec.get("requestBody") is None:
        return Body()
    spec = components.resolve(operation.spec["requestBody"])
    content, is_required = spec.get("content"), spec.get("required") is True
    if not isinstance(content, dict) or not content or operation.method in ("GET", "HEAD"):
        return Body()
    media = next((type for type in content if JSON.fullmatch(type)), None)
    encoding = "json" if media else "form"
    if media is None and (media := next((type for type in content if type.startswith(FORM)), None)) is None:
        if is_required:
            raise ValueError(f"its body is {', '.join(content)}; only JSON and forms are supported")
        return Body()
    schema = (content[media] or {}).get("schema", {})
    members = _members(schema, components)
    if members is None:
        description = {"description": _text(spec.get("description"))} if spec.get("description") else {}
        return Body([Parameter("whole_body", "body", description | schema, is_required)], encoding)
    required = set(members.get("required", ())) if is_required else set()
    parameters = [
        Parameter("body", name, inner, name in required)
        for name, inner in members["properties"].items()
        if not (isinstance(inner, dict) and inner.get("readOnly") is True)
    ]
    return Body(parameters, encoding)


def _members(schema: Any, components: Components) -> dict[str, Any] | None:
    """The `properties` and `required` of an object; None when the schema allows something else too."""
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


def _assign_names(parameters: list[Parameter]) -> dict[str, Parameter]:
    """Each parameter under a unique name that every provider accepts; the first keeps the plain name."""
    named: dict[str, Parameter] = {}
    for place in (*ORDER, "whole_body"):
        for parameter in (parameter for parameter in parameters if parameter.place == place):
            wire = parameter.wire
            plain = wire if ARGUMENT.fullmatch(wire) else re.sub(r"[^A-Za-z0-9_.-]+", "_", wire)[:56]
            name, count = plain.strip("_") if plain != wire else plain, 2
            name = name or place
            if name in named:
                name = f"{name}_{place}"[:64]
            while name in named:
                name, count = f"{name[:60]}_{count}", count + 1
            named[name] = parameter
    return named


def _placement(name: str, parameter: Parameter) -> Place | Placement:
    is_plain = parameter.style == "repeat" and (parameter.wire == name or parameter.place == "whole_body")
    if is_plain:
        return parameter.place
    return Placement(place=parameter.place, name=parameter.wire, style=parameter.style)


def _secrets(secrets: list[Credential], into: str) -> dict[str, SecretHeader]:
    return {credential.name: credential.secret for credential in secrets if credential.into == into}


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
