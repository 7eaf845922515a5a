"""Writes docs/configuration.md from `Settings`: `python -m scripts.configuration_docs` (`make docs`)."""

import inspect
import types
from collections.abc import Container, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.cli.main import serve
from app.config import Settings
from app.core.mcp_servers import BearerAuth, HttpServer, OAuth, ServerDefinition, StdioServer

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

INTRO = """\
# Configuration

This page is generated from the settings of the service (`make docs`); a test checks that it is up to date.

A setting comes from the first of these places that has it:

1. a flag of `toolcrib serve`,
2. an environment variable: `TOOLCRIB_` and the name in capitals, for example `TOOLCRIB_PORT`,
3. the configuration file: `toolcrib.toml` in the working directory, or the file that `--config` names,
4. the default.

Lists and tables in environment variables are JSON: `TOOLCRIB_ALLOWED_HOSTS='["toolcrib"]'`. An unknown name in the
configuration file, or a value that is not valid, keeps the service from starting; the message names the setting.
`toolcrib doctor` checks the configuration without starting the service.

This file runs the service on another port, keeps agents away from environment files, and asks before the agent
`reviewer` edits a file:

```toml
port = 8701

[[rules]]
permission = "read"
pattern = "*.env"
action = "deny"

[[agents.reviewer.rules]]
permission = "edit"
action = "ask"
```
"""


def page() -> str:
    """The whole page."""
    parts = [INTRO, "\n## Settings\n\n", table(Settings, flags()), *sections(Settings, "", set()), *mcp_sections()]
    return "".join(parts)


def flags() -> dict[str, str]:
    """The flags of `toolcrib serve`, by the setting each one sets."""
    return {name: f"`--{name.replace('_', '-')}`" for name in inspect.signature(serve).parameters}


def table(model: type[BaseModel], flags: dict[str, str], *, without: Container[str] = ()) -> str:
    has_flags = any(name in flags for name in model.model_fields)
    head = (
        ["setting", "flag", "values", "default", "meaning"] if has_flags else ["name", "values", "default", "meaning"]
    )
    rows = [head, ["---"] * len(head)]
    for name, field in model.model_fields.items():
        if name in without:
            continue
        cells = [f"`{name}`", values(field.annotation), default(field), meaning(model, name, field)]
        rows.append([cells[0], flags.get(name, ""), *cells[1:]] if has_flags else cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def sections(model: type[BaseModel], prefix: str, shown: set[type[BaseModel]]) -> Iterator[str]:
    """A section for each table of the configuration file, in the order of the settings."""
    for name, field in model.model_fields.items():
        shape, nested = nested_model(field.annotation)
        if nested is None or nested in shown:
            continue
        shown.add(nested)
        path = f"{prefix}{name}"
        title = {"list": f"[[{path}]]", "dict": f"[{path}.NAME]"}.get(shape, f"[{path}]")
        yield f"\n## `{title}`\n\n{inspect.getdoc(nested)}\n\n{table(nested, {})}"
        if shape != "list":
            yield from sections(nested, f"{path}.NAME." if shape == "dict" else f"{path}.", shown)


def mcp_sections() -> Iterator[str]:
    common = ServerDefinition.model_fields
    yield f"""
## `[mcp.servers.NAME]`

An MCP server. These are the settings of every server; `command` or `url` says how to reach it.

{table(ServerDefinition, {}, without={"name"})}
With `command`, a program that the service starts:

{table(StdioServer, {}, without={*common, "kind"})}
With `url`, a server that is reached by streamable HTTP, or by the older SSE transport with `kind = "sse"`:

{table(HttpServer, {}, without={*common, "kind"})}
`auth` is one of two tables. With a bearer token:

{table(BearerAuth, {})}
With OAuth:

{table(OAuth, {})}"""


def nested_model(kind: Any) -> tuple[str, type[BaseModel] | None]:
    """The model that a setting holds, and how: as itself, in a list or in a dict by name."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table", kind
    if is_union(kind):
        return next((found for part in get_args(kind) if (found := nested_model(part))[1]), ("", None))
    if get_origin(kind) in (list, dict):
        return get_origin(kind).__name__, nested_model(get_args(kind)[-1])[1]
    return "", None


def values(kind: Any) -> str:
    """What a setting may be, in words."""
    if is_union(kind):
        return values(next(part for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is list:
        return "tables" if nested_model(kind)[1] else f"list of {values(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        item = get_args(kind)[-1]
        return "table" if is_union(item) else "tables by name"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{value.value}`" for value in kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    if get_origin(kind) is Annotated:
        return "table" if nested_model(get_args(kind)[0])[1] else values(get_args(kind)[0])
    names = {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "Path": "path", "SecretStr": "text"}
    return names.get(getattr(kind, "__name__", ""), "any")


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) or value in (None, [], {}, ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 1024 and "byte" in (field.description or "").lower():
        for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def meaning(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    assert field.description, f"{model.__name__}.{name} has no description"
    return field.description.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
