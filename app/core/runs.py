"""Runs: one model message, the calls in it, and what goes back to the model.

These are the words that every dialect translates from and to: a tool becomes a `ToolOffer`, what the model wrote a
`ModelCall`, what it gets back a `Reply`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from app.core.tools import Payload

CallType = Literal["function", "custom", "apply_patch", "shell", "local_shell", "computer", "tool_search"]
"""What kind of call a model makes. All but the first two are a provider's own tools that its client runs."""
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
    """A call as a model wrote it. `id` is the provider's, None when it gives none.

    `arguments_error` says why the arguments cannot be read; `raw_arguments` is then what was written. `sub_index` tells
    apart the calls that share an id because they came in one wrapper. `caller`, `namespace` and `toolset` are the
    provider's, to be given back as they came. `is_repaired`: what was written is not quite what is here.
    """

    id: str | None
    name: str
    type: CallType = "function"
    arguments: dict[str, Any] | None = None
    input: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None
    toolset: str | None = None
    sub_index: int | None = None
    arguments_error: str | None = None
    raw_arguments: str | None = None
    is_repaired: bool = False

    def view(self) -> dict[str, Any]:
        """The call as it is shown, and kept. What is not there is left out."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        if self.input is not None:
            shown["input"] = self.input
        elif self.arguments is not None:
            shown["arguments"] = self.arguments
        shown |= {name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None}
        return shown | ({"repaired": True} if self.is_repaired else {})

    def outline(self) -> dict[str, Any]:
        """What an answer to it needs, as it is kept: not what it was to do."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        shown |= {name: value for name in _ECHOED if (value := getattr(self, name)) is not None}
        longest = (self.arguments or {}).get("max_output_length")
        return shown if longest is None else shown | {"arguments": {"max_output_length": longest}}


def to_model_call(view: dict[str, Any]) -> ModelCall:
    """A call that was kept as its view."""
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
    """An image, a sound or any other file. `data` is base64; None: it is only to be had at `url`."""

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
    """What goes back for one call. A failed call can have both an error and what it gave until then.

    `commands` has what the commands of a `shell` or `local_shell` call did, `tools` what a `tool_search` found.
    """

    call: ModelCall
    parts: tuple[Part, ...] = ()
    error: Failure | None = None
    commands: tuple[CommandEnd, ...] = ()
    tools: tuple[ToolOffer, ...] = ()


Known = Callable[[str], ToolOffer | None]
"""The tool that a name on the wire means; None when there is none for this caller. An alias has the name it was called
by, because it has arguments of its own."""


class Unreadable(ValueError):
    """A message that is not of the dialect it was sent as, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """What was found in a model's message.

    `text` is what it said besides, `message_id` the provider's id of it, `items` what must be sent along when the
    message is replayed whole; `is_response`: it came as a whole response.
    """

    calls: tuple[ModelCall, ...] = ()
    text: str = ""
    message_id: str | None = None
    items: tuple[dict[str, Any], ...] = ()
    is_response: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """What one of our tools is asked to do for a model's call."""

    tool: str
    arguments: dict[str, Any] | None = None
    input: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One model message that was run: its calls as they were read, and for each the ids of the calls that carry it out.

    `fingerprint` is the same for a message that comes again. `previous` is the response that the answers belong to,
    where they can be sent without repeating it.
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
