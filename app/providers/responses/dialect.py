"""OpenAI Responses: calls are items of a response, and each type has its own output type."""

from typing import Any

from app.core.runs import Known, ParsedMessage, Unreadable
from app.providers import parallel_wrapper
from app.providers.dialects import Dialect, Supports, Wire
from app.providers.responses.items import calls_in, require_items, text_of
from app.providers.responses.results import write_results
from app.providers.responses.streams import is_stream, response_of
from app.providers.responses.tools import QUIRKS, export_tools, fill_request

UNFINISHED = ("incomplete", "failed", "cancelled", "in_progress", "queued")


def read_calls(message: Any, known: Known) -> ParsedMessage:
    try:
        return _read(message, known)
    except RecursionError:
        raise Unreadable("The message is nested too deep.") from None


def _read(message: Any, known: Known) -> ParsedMessage:
    match message:
        case {"output": list()} | {"object": "response"}:
            return _parse(message, known, is_response=True)
        case dict():
            return _read([message], known)
        case list() if is_stream(message):
            response, is_whole = response_of(message)
            return _parse(response, known, is_response=is_whole)
        case list():
            return _parse({"output": message}, known)
    raise Unreadable("This is neither a response, nor its items, nor the events of its stream.")


def _parse(response: Wire, known: Known, *, is_response: bool = False) -> ParsedMessage:
    output = response.get("output")
    items = require_items(output if isinstance(output, list) else [])
    calls = calls_in(items, is_cut=response.get("status") in UNFINISHED)
    id = response.get("id")
    return ParsedMessage(
        calls=tuple(parallel_wrapper.expand(calls, known)),
        text=text_of(items),
        message_id=id if isinstance(id, str) else None,
        items=tuple(items),
        is_response=is_response,
    )


dialect = Dialect(
    name="openai-responses",
    title="OpenAI Responses",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(
        strict=True,
        images=True,
        files=True,
        freeform=True,
        builtins=("apply_patch", "shell", "local_shell", "tool_search"),
    ),
    quirks=QUIRKS,
    strips_nulls=True,
    goes_on=True,
)
