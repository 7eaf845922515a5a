"""Tools that are registered at run time, as they are asked for and kept: run over HTTP, or by the caller's client."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

NAME = r"^[a-zA-Z][a-zA-Z0-9_-]{2,63}$"
"""Legal for every provider."""
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
    """What both kinds have."""

    name: Name = Field(description="What calls name it by.", examples=["get_weather"])
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
    """A tool that the caller runs itself, and posts the result of."""

    kind: Literal["client"] = Field(description="The frontend runs it.")
    timeout: float = Field(default=300, gt=0, le=86_400, description="Seconds until a result must have come.")


AnyDefinition = Annotated[HttpDefinition | ClientDefinition, Field(discriminator="kind")]
