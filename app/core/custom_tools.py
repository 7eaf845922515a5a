"""Definitions of tools registered at run time or by an OpenAPI import, and tools loaded from files."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from app.core.tools import Tool

NAME = r"^[a-zA-Z][a-zA-Z0-9_-]{2,63}$"
"""Valid for every provider."""
Place = Literal["path", "query", "header", "body", "whole_body"]
Style = Literal["repeat", "comma", "space", "pipe", "deep", "members", "json"]
Name = Annotated[str, StringConstraints(pattern=NAME)]


class Placement(BaseModel, extra="forbid"):
    """Where an argument goes, and how it is written there."""

    place: Place = Field(description="`body` is one member of the body, `whole_body` all of it.")
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="What it is called there, if not what the tool calls it.",
    )
    style: Style = Field(
        default="repeat",
        description="How a list or an object is written in a query. `repeat`: the name again for each item; `comma`, "
        "`space`, `pipe`: items joined; `deep`: `name[member]`; `members`: each member by its own name; `json`: JSON.",
    )


class SecretHeader(BaseModel, extra="forbid"):
    """A header, query parameter or cookie whose value is a secret, by name."""

    secret: str = Field(description="The secret's name, as in `PUT /v1/secrets/{name}`.", examples=["MAIL_TOKEN"])
    form: Literal["plain", "bearer", "basic"] = Field(
        default="plain", description="`bearer` puts `Bearer ` before it, `basic` encodes `user:password`."
    )


class Definition(BaseModel, extra="forbid"):
    """The fields of both kinds."""

    name: Name = Field(description="The name that calls use.", examples=["get_weather"])
    title: str | None = Field(default=None, max_length=128, description="A short name for people.")
    description: str = Field(min_length=1, max_length=16_384, description="What it does, written for a model.")
    parameters: dict[str, Any] = Field(
        default={"type": "object", "properties": {}}, description="JSON Schema of its arguments, an object."
    )
    effect: Literal["read", "write"] | None = Field(
        default=None, description="Whether it may change something; when not said, GET and HEAD only read."
    )


class HttpDefinition(Definition):
    """A tool that is one HTTP request."""

    kind: Literal["http"] = Field(description="We send the request.")
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = Field(default="GET", description="The method.")
    url: str = Field(
        max_length=8192,
        description="Where to; `{name}` in its path is filled with the argument of that name.",
        examples=["https://api.example.com/weather/{city}"],
    )
    places: dict[str, Place | Placement] = Field(
        default={},
        description="Where each argument goes. When not said: into the path if the URL names it, into the query of a "
        "GET, HEAD or DELETE, else into the body.",
    )
    encoding: Literal["json", "form"] = Field(default="json", description="How the body is written.")
    headers: dict[str, str | SecretHeader] = Field(default={}, description="Headers to send, some by secret name.")
    query: dict[str, str | SecretHeader] = Field(default={}, description="Fixed query parameters, likewise.")
    cookies: dict[str, SecretHeader] = Field(default={}, description="Cookies to send, by secret name.")
    timeout: float = Field(default=30, gt=0, le=600, description="Seconds for the whole answer.")


class ClientDefinition(Definition):
    """A tool that the client runs, and whose result it posts."""

    kind: Literal["client"] = Field(description="The frontend runs it.")
    timeout: float = Field(default=300, gt=0, le=86_400, description="Seconds until a result must have come.")


AnyDefinition = Annotated[HttpDefinition | ClientDefinition, Field(discriminator="kind")]
Maker = Callable[[Any, str | None], Tool]
"""Makes a tool of a definition for an owner (None: all principals); raises `ValueError` with a sentence."""


class Skipped(NamedTuple):
    """An operation of an API description that became no tool."""

    operation: str
    reason: str


class OpenApiImport(BaseModel, extra="forbid"):
    """Which operations of an API description become tools."""

    url: str | None = Field(
        default=None,
        max_length=8192,
        description="Where the OpenAPI description is; or send it as `document`.",
        examples=["https://api.example.com/openapi.json"],
    )
    document: dict[str, Any] | str | None = Field(
        default=None, description="The OpenAPI description itself, as JSON or as text (JSON or YAML)."
    )
    prefix: str = Field(
        default="", max_length=32, pattern=r"^[a-zA-Z0-9_-]*$", description="Put before each name.", examples=["pets_"]
    )
    include: list[str] = Field(default=[], description="Only operations whose name fits one of these patterns.")
    exclude: list[str] = Field(default=[], description="Without operations whose name fits one of these patterns.")
    auth: dict[str, str] = Field(
        default={},
        description="One secret for all, `{secret, in, name, form}`, or the name of a secret for each security scheme.",
        examples=[{"secret": "PETS_TOKEN"}],
    )
    server: str | None = Field(
        default=None, max_length=8192, description="Where the API is, when its description does not say or says wrong."
    )


Importer = Callable[[OpenApiImport, str], Awaitable[tuple[list[HttpDefinition], list[Skipped]]]]
"""Reads an API description for a principal; raises `ValueError` or a `CallError` with a sentence when it cannot."""


class Found(NamedTuple):
    """A tool and the file it was found in."""

    file: str
    tool: Tool


class Unloaded(NamedTuple):
    """A file, or a tool in it, that cannot be used."""

    file: str
    reason: str


@dataclass(slots=True)
class Loaded:
    """Tools loaded from files, and files that failed."""

    found: list[Found] = field(default_factory=list)
    failed: list[Unloaded] = field(default_factory=list)
