"""What a dialect is: how tools are offered in it, calls read from it and results written in it.

A dialect file ends with one value, `dialect`. What its relatives do differently is data, in `quirks`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.core.runs import Known, ParsedMessage, Reply, ToolOffer

Strictness = Literal["auto", "on", "off"]
Mode = Literal["auto", "none", "required", "tool"]
Wire = dict[str, Any]
"""A piece of a request or an answer, as it goes over the wire."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """Which names of tools a provider takes."""

    pattern: re.Pattern[str]
    longest: int = 64


UNIVERSAL = NameRule(re.compile(r"[a-zA-Z][a-zA-Z0-9_]{2,63}"))
"""What every provider takes."""
COMMON = NameRule(re.compile(r"[a-zA-Z0-9_-]+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """What a provider does in its own way.

    `strict`: `full` (the rewrite is understood and asked for by `auto`), `on_request` (understood, never by `auto`),
    `false` (must be said to be off, or it is on), `never` (the key is not known). `modes` are the choices that can be
    sent, `says_parallel` whether several calls at once can be forbidden, `says_allowed` whether a choice can be
    narrowed to some of the tools. `closes`: objects may say they are closed.
    """

    strict: Literal["full", "on_request", "false", "never"] = "never"
    names: NameRule = COMMON
    most_tools: int | None = None
    longest_description: int | None = None
    modes: frozenset[Mode] = frozenset({"auto", "none", "required", "tool"})
    says_parallel: bool = True
    says_allowed: bool = False
    closes: bool = True
    takes_freeform: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Supports:
    """What a frontend can count on, as `GET /v1/dialects` shows it."""

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
    """How tools are to be offered. `defers` says of a name whether it is found by search only."""

    strict: Strictness = "auto"
    model: str | None = None
    is_native: bool = False
    cache: Literal["ephemeral", "1h"] | None = None
    defers: Callable[[str], bool] | None = None
    namespace: tuple[str, str] | None = None
    quirks: Quirks = Quirks()


@dataclass(slots=True)
class Exported:
    """Tools ready to be pasted into a request, and what could not be done as it was asked."""

    tools: list[Wire] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which tools the model shall use, in no provider's words. None: nothing is said about it.

    With the mode `tool` it is the one named; `allowed` narrows the other modes to some.
    """

    mode: Mode | None = None
    name: str | None = None
    allowed: tuple[str, ...] = ()
    parallel: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A dialect: pure functions from dict to dict.

    `export_tools` gives the value of the provider's own `tools` key. `fill_request` puts that and the choice where they
    stand in a request, and adds a sentence to the warnings for what cannot be said there. `read_calls` takes a whole
    response, the assistant's message, the bare list of calls or the chunks of a finished stream; it raises
    `Unreadable`. `write_results` gives what is to be appended, one answer for each reply, in their order.
    `strips_nulls`: a null may stand for an argument that was left out. `numbers_calls`: ids are missing, or only count
    the calls of one message. `goes_on`: a conversation can go on from a response by its id, without repeating it.
    """

    name: str
    title: str
    export_tools: Callable[[Sequence[ToolOffer], ExportOptions], Exported]
    fill_request: Callable[[list[Wire], Choice, Quirks, list[str]], Wire]
    read_calls: Callable[[Any, Known], ParsedMessage]
    write_results: Callable[[Sequence[Reply]], list[Wire]]
    supports: Supports
    quirks: Quirks = Quirks()
    strips_nulls: bool = False
    numbers_calls: bool = False
    goes_on: bool = False
