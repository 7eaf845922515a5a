"""`GET /v1/tools?format=`: tools as a provider's request takes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import Response

from app.api.http.problems import not_found
from app.api.http.responses import json_response
from app.core.rules import matches
from app.providers import registry
from app.providers.dialects import Choice, Dialect, ExportOptions, Mode, Strictness
from app.providers.reply_content import offer_of

WARNINGS = "Toolcrib-Warnings"
MAX_WARNINGS_LENGTH = 4096
"""Characters of the warnings header."""
MODES: tuple[Mode, ...] = ("auto", "none", "required")
HEADERS = {WARNINGS: {"description": "What could not be exported, a JSON list.", "schema": {"type": "string"}}}

Format = Annotated[
    str | None,
    Query(
        max_length=128,
        description="A dialect: the response is then the value of `tools` in a request to the provider.",
        json_schema_extra={"enum": list(registry.NAMES), "examples": ["openai-chat"]},
    ),
]
Names = Annotated[
    str | None, Query(max_length=1024, description="Only tools of these names or patterns, comma-separated.")
]
Strict = Annotated[
    Strictness, Query(description="With `format`: whether schemas are rewritten so that they can be enforced.")
]
Builtins = Annotated[
    Literal["functions", "native"],
    Query(description="With `format`: `native` offers the provider's own tools where Toolcrib runs them."),
]
Cache = Annotated[
    Literal["ephemeral", "1h"] | None, Query(description="With `format`: mark the last tool for the prompt cache.")
]
Defer = Annotated[
    str | None,
    Query(
        max_length=512,
        description="With `format`: names or patterns of tools that are found by tool search only; `*` is all.",
    ),
]
Namespace = Annotated[
    str | None,
    Query(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$", description="openai-responses: put the tools into a namespace."),
]
Shape = Annotated[
    Literal["tools", "request"],
    Query(description="With `format`: only the tools, or all fields of a request that are about tools."),
]
ToolChoice = Annotated[
    str | None,
    Query(
        max_length=64,
        description="With `shape=request`: `auto`, `none`, `required`, or the name of the tool that must be used.",
    ),
]
Parallel = Annotated[
    bool | None, Query(description="With `shape=request`: whether one message may have several calls.")
]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which tools, in which dialect; without one they are listed in Toolcrib's own format."""

    patterns: Sequence[str] = ()
    dialect: Dialect | None = None
    options: ExportOptions = field(default_factory=ExportOptions)
    choice: Choice | None = None

    @property
    def provider(self) -> str | None:
        return None if self.dialect is None else self.dialect.name

    def includes(self, name: str) -> bool:
        return not self.patterns or _matches_any(name, self.patterns)

    def response(self, tools: Sequence[dict[str, Any]], model: str | None) -> Response:
        """The tools that can be used, in the dialect."""
        assert self.dialect is not None, "only called with a dialect"
        offers = [offer_of(tool) for tool in tools if tool["available"]]
        exported = self.dialect.export_tools(offers, replace(self.options, model=model))
        body: Any = exported.tools
        if self.choice is not None:
            body = self.dialect.fill_request(exported.tools, self.choice, self.dialect.quirks, exported.warnings)
        headers = {WARNINGS: _header(exported.warnings)} if exported.warnings else None
        return json_response(body, headers=headers)


async def _export_request(
    format: Format = None,
    names: Names = None,
    strict: Strict = "auto",
    builtins: Builtins = "functions",
    cache: Cache = None,
    defer: Defer = None,
    namespace: Namespace = None,
    shape: Shape = "tools",
    tool_choice: ToolChoice = None,
    parallel: Parallel = None,
) -> ExportRequest:
    if format is None:
        return ExportRequest(_split(names))
    dialect = registry.find(format)
    if dialect is None:
        raise not_found(f"dialect {format}; GET /v1/dialects lists them")
    deferred = _split(defer)
    options = ExportOptions(
        strict=strict,
        is_native=builtins == "native",
        cache=cache,
        defers=(lambda name: _matches_any(name, deferred)) if deferred else None,
        namespace=(namespace, f"Tools of {namespace}.") if namespace else None,
        quirks=dialect.quirks,
    )
    return ExportRequest(
        _split(names), dialect, options, _choice(tool_choice, parallel) if shape == "request" else None
    )


ExportDep = Annotated[ExportRequest, Depends(_export_request)]


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


def _split(text: str | None) -> list[str]:
    return [part for part in (text or "").replace(" ", "").split(",") if part]


def _choice(choice: str | None, parallel: bool | None) -> Choice:
    if choice is None:
        return Choice(parallel=parallel)
    mode = next((mode for mode in MODES if mode == choice), None)
    return Choice(mode=mode, parallel=parallel) if mode else Choice(mode="tool", name=choice, parallel=parallel)


def _header(warnings: Sequence[str]) -> str:
    """A JSON list in ASCII, shortened when there are too many."""
    shown = list(warnings)
    while len(shown) > 1 and len(json.dumps(shown)) > MAX_WARNINGS_LENGTH:
        shown = [*shown[: len(shown) // 2], f"and {len(warnings) - len(shown) // 2} more"]
    return json.dumps(shown)
