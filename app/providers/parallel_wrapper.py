"""`multi_tool_use.parallel`: a wrapper call with several calls in its arguments, which OpenAI models sometimes write.

They are run as separate calls and answered once, as the provider knows only the wrapper's id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from app.core.runs import Failure, Known, ModelCall, Part, Reply, Text
from app.providers import call_arguments, reply_content

WRAPPERS = ("multi_tool_use.parallel", "parallel")
PREFIX = "functions."


def expand(calls: Iterable[ModelCall], known: Known) -> list[ModelCall]:
    """The calls with wrappers replaced by their content. A wrapper with an unknown tool stays."""
    return [inner for call in calls for inner in _unwrap(call, known) or [call]]


def merge(replies: Iterable[Reply]) -> list[Reply]:
    """The replies, with those of one wrapper joined at the position of the first."""
    groups: list[list[Reply]] = []
    latest: dict[str | None, list[Reply]] = {}
    for reply in replies:
        if reply.call.sub_index is None:
            groups.append([reply])
        elif reply.call.sub_index == 0 or reply.call.id not in latest:
            latest[reply.call.id] = [reply]
            groups.append(latest[reply.call.id])
        else:
            latest[reply.call.id].append(reply)
    return [group[0] if group[0].call.sub_index is None else _join(group) for group in groups]


def _unwrap(call: ModelCall, known: Known) -> list[ModelCall]:
    if call.type != "function" or call.name not in WRAPPERS or known(call.name) is not None:
        return []
    uses = (call.arguments or {}).get("tool_uses")
    if not isinstance(uses, list):
        return []
    inner = [_inner(call, use, number) for number, use in enumerate(uses)]
    return [call for call in inner if call] if all(call and known(call.name) for call in inner) else []


def _inner(call: ModelCall, use: Any, number: int) -> ModelCall | None:
    if not isinstance(use, dict) or not isinstance(use.get("recipient_name"), str):
        return None
    name = use["recipient_name"].removeprefix(PREFIX)
    try:
        arguments = call_arguments.parse(use.get("parameters"))
    except RecursionError:
        return None
    return ModelCall(id=call.id, name=name, sub_index=number, namespace=call.namespace, caller=call.caller, **arguments)


def _join(replies: Sequence[Reply]) -> Reply:
    """An error when all have failed; else each failure is in its text."""
    call = replace(replies[0].call, name=WRAPPERS[0], sub_index=None)
    parts: list[Part] = []
    for reply in replies:
        parts.append(Text(f"{reply.call.name}:\n{reply_content.text_of(reply) or reply_content.NO_OUTPUT}"))
        parts += reply_content.media_of(reply)
    first = replies[0].error
    has_failed = first is not None and all(reply.error is not None for reply in replies)
    error = Failure(first.code, "None of these calls succeeded.") if first and has_failed else None
    return Reply(call=call, parts=tuple(parts), error=error)
