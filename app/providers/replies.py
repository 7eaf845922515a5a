"""Replies: what came of the calls that carried out a model's call, as it goes back to the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.core.runs import Failure, Media, ModelCall, Part, Reply, Text, ToolOffer
from app.providers.builtin_calls import command_end

NO_COMPUTER = Failure(
    "ToolUnavailable", "No computer is attached to this service, so nothing was done on one; use other tools."
)


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """How a call ended: its result and its error as they are kept, and the files that go along, or what stands for
    them."""

    result: dict[str, Any] | None
    error: dict[str, Any] | None
    files: tuple[Media | Text, ...] = ()


def reply_to(asked: ModelCall, ends: Sequence[FinishedCall]) -> Reply:
    """What one model's call gets back. Only a shell call has been carried out by several."""
    match asked.type:
        case "shell" | "local_shell":
            return _of_commands(asked, ends)
        case "tool_search":
            return Reply(call=asked, tools=_found(ends[0].result), error=_failure(ends[0]))
        case "computer" if ends[0].error and ends[0].error["code"] == "UnknownTool":
            return Reply(call=asked, error=NO_COMPUTER)
        case _:
            return Reply(call=asked, parts=_parts(ends[0]), error=_failure(ends[0]))


def is_blocked(error: dict[str, Any]) -> bool:
    """Whether a person said no to it."""
    return error["code"] == "Declined" or bool((error.get("details") or {}).get("blocked"))


def _of_commands(asked: ModelCall, ends: Sequence[FinishedCall]) -> Reply:
    return Reply(call=asked, commands=tuple(command_end(end.result, end.error) for end in ends))


def _parts(end: FinishedCall) -> tuple[Part, ...]:
    said = end.result["output"] if end.result else ""
    return (*((Text(said),) if said else ()), *end.files)


def _failure(end: FinishedCall) -> Failure | None:
    return None if end.error is None else Failure(end.error["code"], end.error["message"])


def _found(result: dict[str, Any] | None) -> tuple[ToolOffer, ...]:
    tools = ((result or {}).get("structured") or {}).get("tools", [])
    return tuple(offer_of(tool) for tool in tools)


def offer_of(tool: dict[str, Any]) -> ToolOffer:
    """A tool as it is listed, to be offered."""
    return ToolOffer(
        name=tool["name"],
        description=tool["description"],
        schema=tool["parameters"],
        takes=tool["takes"],
        grammar=tool["grammar"],
        title=tool["title"],
        annotations=tool["annotations"],
        output_schema=tool["output_schema"],
    )
