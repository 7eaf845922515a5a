"""What a dialect is: how a provider takes tools, sends calls and takes results.

A dialect's module ends with a `Dialect`. Differences between providers of one dialect are data, in `quirks`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.core.runs import Known, ParsedMessage, Reply, ToolOffer

Strictness = Literal["auto", "on", "off"]
Mode = Literal["auto", "none", "required", "tool"]
Wire = dict[str, Any]
"""A part of a provider's request or response, as JSON."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """The tool names that a provider accepts."""

    pattern: re.Pattern[str]
    max_length: int = 64


UNIVERSAL = NameRule(re.compile(r"[a-zA-Z][a-zA-Z0-9_]{2,63}"))
"""Accepted by every provider."""
COMMON = NameRule(re.compile(r"[a-zA-Z0-9_-]+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Differences between providers."""

    strict: Literal["full", "on_request", "false", "never"] = "never"
    """`full`: supported and used by `auto`; `on_request`: supported, not used by `auto`; `false`: on unless the tool
    says false; `never`: the key is not known."""
    names: NameRule = COMMON
    max_tools: int | None = None
    max_description: int | None = None
    modes: frozenset[Mode] = frozenset({"auto", "none", "required", "tool"})
    """The modes that `tool_choice` can have."""
    has_parallel_choice: bool = True
    """Whether parallel calls can be disabled."""
    has_allowed_list: bool = False
    """Whether `tool_choice` can name the allowed tools."""
    allows_closed: bool = True
    """Whether `additionalProperties: false` is accepted."""
    takes_freeform: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Supports:
    """What a client can use, as in `GET /v1/dialects`."""

    native_tools: bool = True
    strict: bool = False
    images: bool = False
    files: bool = False
    parallel: bool = True
    freeform: bool = False
    builtins: tuple[str, ...] = ()
    streams: bool = True
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How tools are exported. `defers` tells whether a tool is only found by search."""

    strict: Strictness = "auto"
    model: str | None = None
    is_native: bool = False
    cache: Literal["ephemeral", "1h"] | None = None
    defers: Callable[[str], bool] | None = None
    namespace: tuple[str, str] | None = None
    quirks: Quirks = Quirks()


@dataclass(slots=True)
class Exported:
    """Tools ready for a request, and warnings about unsupported options."""

    tools: list[Wire] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which tools the model may or must use, for any provider. None: not specified.

    The mode `tool` uses `name`; `allowed` restricts the other modes to some tools.
    """

    mode: Mode | None = None
    name: str | None = None
    allowed: tuple[str, ...] = ()
    parallel: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Pure functions from dict to dict."""

    name: str
    title: str
    export_tools: Callable[[Sequence[ToolOffer], ExportOptions], Exported]
    """The value of the provider's `tools` field."""
    fill_request: Callable[[list[Wire], Choice, Quirks, list[str]], Wire]
    """The request fields for the tools and the choice; adds a warning for what the provider does not support."""
    read_calls: Callable[[Any, Known], ParsedMessage]
    """Reads a response, an assistant message, a list of calls or the chunks of a stream; raises `Unreadable`."""
    write_results: Callable[[Sequence[Reply]], list[Wire]]
    """The messages to append: an answer for each reply, in their order."""
    supports: Supports
    quirks: Quirks = Quirks()
    strips_nulls: bool = False
    """Whether null may mean that an argument was left out."""
    numbers_calls: bool = False
    """Whether ids are missing or only count the calls of one message."""
    goes_on: bool = False
    """Whether a conversation can continue from a response by its id."""
