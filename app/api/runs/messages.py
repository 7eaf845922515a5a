"""Model messages on their way in: read in their dialect, and turned into what our tools are asked to do."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from app.api.auth import Services
from app.api.http.problems import Problem, not_found
from app.core.calls import CallRequest
from app.core.errors import CallError, InvalidArgs
from app.core.principals import Key
from app.core.runs import CallSpec, Known, ModelCall, ParsedMessage, ToolOffer, Unreadable
from app.core.sessions import Session
from app.core.tools import Tool
from app.providers import registry
from app.providers.builtin_calls import errands
from app.providers.detection import detect
from app.providers.dialects import Dialect
from app.providers.schema.strip_nulls import strip_nulls
from app.providers.tool_limits import wire_name

MOST_CALLS = 128
LONGEST = 256
NAMELESS = "(no name)"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A model's call, what carries it out, and what is wrong with it already."""

    asked: ModelCall
    requests: tuple[CallRequest, ...]
    fault: CallError | None = None


def dialect_of(name: str, message: Any) -> Dialect:
    """The dialect that is named, or the one the message is in."""
    if name == registry.AUTO:
        found = detect(message)
        if found is None:
            raise Problem(422, "UnknownDialect", "The message's dialect cannot be told; name it in the path.")
        name = found
    dialect = registry.find(name)
    if dialect is None:
        raise not_found(f"dialect {name}; GET /v1/dialects lists them")
    return dialect


def read(dialect: Dialect, message: Any, known: Known) -> ParsedMessage:
    try:
        reading = dialect.read_calls(message, known)
    except Unreadable as error:
        raise Problem(422, "UnreadableMessage", str(error)) from None
    if len(reading.calls) > MOST_CALLS:
        raise Problem(422, "TooManyCalls", f"The message has more than {MOST_CALLS} calls.")
    return reading


def known_to(services: Services, session: Session, key: Key, dialect: Dialect) -> Known:
    """The tools this caller may use, by their names and by what those become on the wire."""

    @cache
    def wires() -> dict[str, Tool]:
        return {wire_name(tool.name, dialect.quirks.names): tool for tool in services.dispatcher.tools(session, key)}

    @cache
    def find(name: str) -> ToolOffer | None:
        if (tool := services.listing.get(name, session, key)) is not None:
            return _offer(tool, name)
        meant = wires().get(name)
        return None if meant is None else _offer(meant, meant.name)

    return find


def plan(dialect: Dialect, reading: ParsedMessage, known: Known, options: dict[str, Any]) -> list[PlannedCall]:
    planned = [_planned(dialect, call, known, options) for call in reading.calls]
    if sum(len(one.requests) for one in planned) > MOST_CALLS:
        raise Problem(422, "TooManyCalls", f"The message has more than {MOST_CALLS} calls and commands.")
    return planned


def _offer(tool: Tool, name: str) -> ToolOffer:
    """By the name it was called: other names may have other arguments."""
    return ToolOffer(name=name, description=tool.description, schema=tool.schema, takes=tool.takes)


def _planned(dialect: Dialect, call: ModelCall, known: Known, options: dict[str, Any]) -> PlannedCall:
    offer = known(call.name) if call.type == "function" else None
    if call.arguments_error is not None:
        fault = InvalidArgs(f"{call.arguments_error} Send the arguments of {call.name} as one JSON object.")
        errand = CallSpec(tool=offer.name if offer else call.name, input=call.raw_arguments)
        return PlannedCall(call, (_request(errand, call, options),), fault)
    if dialect.strips_nulls and offer is not None and _has_null(call.arguments):
        call = replace(call, arguments=strip_nulls(offer.schema, call.arguments or {}))
    return PlannedCall(call, tuple(_request(errand, call, options) for errand in errands(call, known)))


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_null(item) for item in value)
    return value is None


def _request(errand: CallSpec, call: ModelCall, options: dict[str, Any]) -> CallRequest:
    return CallRequest(
        tool=errand.tool[:LONGEST] or NAMELESS,
        arguments=errand.arguments,
        input=errand.input,
        call_id=call.id[:LONGEST] if call.id else None,
        **options | ({} if errand.timeout is None else {"timeout": errand.timeout}),
    )
