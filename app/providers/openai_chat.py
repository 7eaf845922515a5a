"""OpenAI Chat Completions: `tool_calls` in, messages of the role `tool` out. Its relatives differ in `quirks` alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.core.runs import Known, Reading, Reply
from app.providers import chat_calls, chat_choices, chat_results, chat_tools, wrappers
from app.providers.dialects import Dialect, Quirks, Supports, Wire


def read_calls(message: Any, known: Known) -> Reading:
    reading = chat_calls.read(message)
    return replace(reading, calls=tuple(wrappers.expand(reading.calls, known)))


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    return chat_results.write(wrappers.merge(replies))


dialect = Dialect(
    name="openai-chat",
    title="OpenAI Chat Completions",
    export_tools=chat_tools.export,
    fill_request=chat_choices.fill,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(strict=True, images=True, files=True, freeform=True),
    quirks=Quirks(strict="full", most_tools=128, longest_description=1024, says_allowed=True, takes_freeform=True),
    strips_nulls=True,
)
