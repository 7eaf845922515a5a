"""OpenAI Chat Completions: `tool_calls` in, messages of the role `tool` out."""

from dataclasses import replace
from typing import Any

from app.core.runs import Known, ParsedMessage
from app.providers import parallel_wrapper
from app.providers.chat import calls, results, tools
from app.providers.dialects import Dialect, Quirks, Supports


def read_calls(message: Any, known: Known) -> ParsedMessage:
    parsed = calls.parse(message)
    return replace(parsed, calls=tuple(parallel_wrapper.expand(parsed.calls, known)))


dialect = Dialect(
    name="openai-chat",
    title="OpenAI Chat Completions",
    export_tools=tools.export,
    fill_request=tools.fill,
    read_calls=read_calls,
    write_results=lambda replies: results.write(parallel_wrapper.merge(replies)),
    supports=Supports(strict=True, images=True, files=True, freeform=True),
    quirks=Quirks(strict="full", max_tools=128, max_description=1024, has_allowed_list=True, takes_freeform=True),
    strips_nulls=True,
)
