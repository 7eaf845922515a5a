"""Reads a model's message in its dialect and plans the calls that carry it out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from app.core.calls import CallRequest
from app.core.errors import CallError, InvalidArgs
from app.core.principals import Key
from app.core.runs import CallSpec, Known, ModelCall, ParsedMessage, ToolOffer, Unreadable
from app.core.sessions import Session
from app.core.tools import Tool
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.tools.listing import Listing
from app.providers import registry
from app.providers.builtin_calls import call_specs
from app.providers.detection import detect
from app.providers.dialects import Dialect
from app.providers.schema.strip_nulls import strip_nulls
from app.providers.tool_limits import wire_name

MAX_CALLS = 128
MAX_NAME_LENGTH = 256
NO_NAME = "(no name)"


class RunError(Exception):
    """Why a message cannot be run, or a run cannot be read. Clients see `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A model's call and the requests that carry it out. With a `fault` they end in that error without running."""

    call: ModelCall
    requests: tuple[CallRequest, ...]
    fault: CallError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A message that was read, and its calls in order."""

    id: str
    created_at: int
    dialect: Dialect
    message: ParsedMessage
    calls: Sequence[PlannedCall]


def find_dialect(name: str, message: Any) -> Dialect:
    """The dialect of this name; for `auto` the one the message is in."""
    if name == registry.AUTO:
        detected = detect(message)
        if detected is None:
            raise RunError("UnknownDialect", "The message's dialect cannot be detected; name it in the path.")
        name = detected
    dialect = registry.find(name)
    if dialect is None:
        raise RunError("NotFound", f"There is no dialect {name}; GET /v1/dialects lists them.")
    return dialect


def known_tools(dispatcher: Dispatcher, listing: Listing, session: Session, key: Key, dialect: Dialect) -> Known:
    """Finds the tools this key may use, by their names and by the names they have in the dialect."""

    @cache
    def by_wire_name() -> dict[str, Tool]:
        return {wire_name(tool.name, dialect.quirks.names): tool for tool in dispatcher.tools(session, key)}

    @cache
    def find(name: str) -> ToolOffer | None:
        # Offered under the name it was called by: an alias can have other arguments.
        tool = listing.get(name, session, key)
        if tool is None:
            tool = by_wire_name().get(name)
            if tool is None:
                return None
            name = tool.name
        return ToolOffer(name=name, description=tool.description, schema=tool.schema, takes=tool.takes)

    return find


def read_message(dialect: Dialect, message: Any, tools: Known) -> ParsedMessage:
    try:
        parsed = dialect.read_calls(message, tools)
    except Unreadable as error:
        raise RunError("UnreadableMessage", str(error)) from None
    if len(parsed.calls) > MAX_CALLS:
        raise RunError("TooManyCalls", f"The message has more than {MAX_CALLS} calls.")
    return parsed


def plan_calls(
    dialect: Dialect, parsed: ParsedMessage, tools: Known, call_options: dict[str, Any]
) -> list[PlannedCall]:
    """The requests for each call of the message; `call_options` are fields that every request gets."""
    planned = [_plan_call(dialect, call, tools, call_options) for call in parsed.calls]
    if sum(len(one.requests) for one in planned) > MAX_CALLS:
        raise RunError("TooManyCalls", f"The message has more than {MAX_CALLS} calls and commands.")
    return planned


def message_id(parsed: ParsedMessage, run: str, *, has_idempotency_key: bool) -> str | None:
    """The provider's id of the message, else the run's.

    None with an Idempotency-Key: the same calls may be sent again and must be equal, though the run's id is new.
    """
    if parsed.message_id:
        return parsed.message_id[:MAX_NAME_LENGTH]
    return None if has_idempotency_key else run


def _plan_call(dialect: Dialect, call: ModelCall, tools: Known, call_options: dict[str, Any]) -> PlannedCall:
    offer = tools(call.name) if call.type == "function" else None
    if call.arguments_error is not None:
        fault = InvalidArgs(f"{call.arguments_error} Send the arguments of {call.name} as one JSON object.")
        spec = CallSpec(tool=offer.name if offer else call.name, input=call.raw_arguments)
        return PlannedCall(call, (_request(spec, call, call_options),), fault)
    if dialect.strips_nulls and offer is not None and _has_null(call.arguments):
        call = replace(call, arguments=strip_nulls(offer.schema, call.arguments or {}))
    return PlannedCall(call, tuple(_request(spec, call, call_options) for spec in call_specs(call, tools)))


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_null(item) for item in value)
    return value is None


def _request(spec: CallSpec, call: ModelCall, call_options: dict[str, Any]) -> CallRequest:
    return CallRequest(
        tool=spec.tool[:MAX_NAME_LENGTH] or NO_NAME,
        arguments=spec.arguments,
        input=spec.input,
        call_id=call.id[:MAX_NAME_LENGTH] if call.id else None,
        **call_options | ({} if spec.timeout is None else {"timeout": spec.timeout}),
    )
