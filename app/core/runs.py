"""Runs: one model message, its calls, and the replies to them.

The provider-independent types of every dialect: a tool is a `ToolOffer`, a call of the model a `ModelCall`, its answer
a `Reply`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from app.core.tools import Payload

CallType = Literal["function", "custom", "apply_patch", "shell", "local_shell", "computer", "tool_search"]
"""The kinds of calls. All but the first two are built-in tools of a provider that the client runs."""
_ALWAYS = ("id", "type", "name")
_ECHOED = ("namespace", "caller", "toolset", "sub_index")
_OPTIONAL = (*_ECHOED, "arguments_error", "raw_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """A tool as it is offered to a model."""

    name: str
    description: str
    schema: dict[str, Any]
    takes: Payload = "arguments"
    grammar: str | None = None
    title: str | None = None
    annotations: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call as a model wrote it."""

    id: str | None
    """The provider's id, if it has one."""
    name: str
    type: CallType = "function"
    arguments: dict[str, Any] | None = None
    input: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None
    toolset: str | None = None
    """`namespace`, `caller` and `toolset` are the provider's and sent back unchanged."""
    sub_index: int | None = None
    """The index among the calls of one wrapper, which share an id."""
    arguments_error: str | None = None
    """Why the arguments are invalid; `raw_arguments` are then the original text."""
    raw_arguments: str | None = None
    is_repaired: bool = False
    """Whether the arguments were nearly valid JSON and repaired."""

    def view(self) -> dict[str, Any]:
        """The call as it is shown and stored, without empty fields."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        if self.input is not None:
            shown["input"] = self.input
        elif self.arguments is not None:
            shown["arguments"] = self.arguments
        shown |= {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}
        return shown | ({"repaired": True} if self.is_repaired else {})

    def outline(self) -> dict[str, Any]:
        """The fields that an answer needs, as they are stored."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        shown |= {name: value for name in _ECHOED if (value := getattr(self, name)) is not None}
        max_length = (self.arguments or {}).get("max_output_length")
        return shown if max_length is None else shown | {"arguments": {"max_output_length": max_length}}


def to_model_call(view: dict[str, Any]) -> ModelCall:
    """A call from its stored view."""
    return ModelCall(
        **{name: value for name, value in view.items() if name != "repaired"}, is_repaired=view.get("repaired", False)
    )


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Json:
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image, a sound or any other file. `data` is base64; None: only `url` is known."""

    mime: str
    data: str | None = None
    url: str | None = None
    name: str | None = None

    @property
    def is_image(self) -> bool:
        return self.mime.startswith("image/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    source: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolReference:
    """A tool that a search found, by its name."""

    name: str


Part = Text | Json | Media | SearchResult | ToolReference


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How one command of a shell call ended. Without an exit code it was stopped."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one call. A failed call can have both an error and parts.

    `commands` are the ends of a `shell` or `local_shell` call, `tools` the results of a `tool_search`.
    """

    call: ModelCall
    parts: tuple[Part, ...] = ()
    error: Failure | None = None
    commands: tuple[CommandEnd, ...] = ()
    tools: tuple[ToolOffer, ...] = ()


Known = Callable[[str], ToolOffer | None]
"""The tool of a wire name; None when this caller has none. An alias keeps its name, as it has arguments of its own."""


class Unreadable(ValueError):
    """Why a message is not valid in its dialect, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """A model's message: calls, text, the provider's id, and the items to replay.

    `is_response`: it was a whole response of the provider.
    """

    calls: tuple[ModelCall, ...] = ()
    text: str = ""
    message_id: str | None = None
    items: tuple[dict[str, Any], ...] = ()
    is_response: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """One call of our tools for a model's call."""

    tool: str
    arguments: dict[str, Any] | None = None
    input: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One model message that was run: its calls, and for each the ids of the calls of our tools.

    `fingerprint` identifies a repeated message. `previous` is the id of the response that the conversation continues
    from, where the provider supports it.
    """

    id: str
    principal: str
    session: str
    dialect: str
    created_at: int
    fingerprint: str
    asked: tuple[ModelCall, ...] = ()
    calls: tuple[tuple[str, ...], ...] = ()
    previous: str | None = None
