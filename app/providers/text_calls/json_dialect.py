"""Dialect `text`: models without tools of their own are taught to write calls as JSON between tags, as Hermes does."""

import json
from collections.abc import Sequence
from typing import Any

from app.core.runs import Reply, ToolOffer
from app.providers.dialects import Dialect, Exported, ExportOptions, Supports, Wire
from app.providers.text_calls.dialect import PromptTemplate, fill_request, read_calls, said_by, teach, unclosing

WORDS = """\
# Tools

You can call the tools that are listed below. To call one, write a block like this one:

<tool_call>
{"name": "some_tool", "arguments": {"a_text": "first line\\nsecond line", "a_number": 5}}
</tool_call>

- Between the tags stands one JSON object: the name of the tool, and its arguments as its JSON Schema describes them.
- It must be whole and valid JSON: in strings, line breaks are written as \\n, quotes as \\" and backslashes as \\\\.
- For more calls write more blocks, one behind the other. Calls in one answer may run at the same time.
- Write the blocks as they are: a call that stands in a code block with other text, or in quotes, is not run.
- End your answer behind the last block. Then you are given one <tool_response> for each call, in the same order. Never
  write a <tool_response> yourself."""


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    return teach(offers, options, PromptTemplate(WORDS, "tools", _shown))


def _shown(name: str, description: str, schema: dict[str, Any]) -> Wire:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """One message with a block for each reply. The name is repeated, because there are no ids."""
    if not replies:
        return []
    return [{"role": "user", "content": "\n".join(_block(reply) for reply in replies)}]


def _block(reply: Reply) -> str:
    error = {} if reply.error is None else {"error": reply.error.code}
    put = unclosing(json.dumps({"name": reply.call.name, **error, "content": said_by(reply)}, ensure_ascii=False))
    return f"<tool_response>\n{put}\n</tool_response>"


dialect = Dialect(
    name="text",
    title="Plain text, calls as JSON between tags",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(
        native_tools=False,
        note="For models without tools of their own. The tools are a block of the system prompt. Calls are found in "
        "the model's text, also by the conventions of Anthropic, MiniMax, Qwen, ChatCLI, Mistral and Llama.",
    ),
    numbers_calls=True,
)
