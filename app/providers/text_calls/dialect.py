"""The dialects `text` and `text-xml`, for models without tool calls: tools in the system prompt, calls in the text."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.core.runs import Known, ParsedMessage, Reply, ToolOffer
from app.providers import reply_content
from app.providers.dialects import Choice, Dialect, Exported, ExportOptions, Quirks, Supports, Wire
from app.providers.text_calls.extract import read
from app.providers.text_calls.message_text import message_text
from app.providers.tool_limits import FREE_FORM, fit_count, fit_description, fit_name, wire_name


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How a format is explained in the system prompt: a text with an example, then the tools between tags."""

    text: str
    tag: str
    is_wrapped: bool = False
    """Whether a tool is written as OpenAI does, `{"type": "function", "function": ...}`."""


def export_prompt(offers: Sequence[ToolOffer], options: ExportOptions, template: PromptTemplate) -> Exported:
    """One block of a system prompt that explains the format and lists the tools."""
    exported = Exported(warnings=_unsupported_options(offers, options))
    offers = fit_count(offers, options.quirks.max_tools, exported.warnings)
    if not offers:
        return exported
    lines = [_line(offer, options.quirks, template, exported.warnings) for offer in offers]
    parts = [
        template.text,
        *_free_text(offers, options.quirks),
        "\n".join([f"<{template.tag}>", *lines, f"</{template.tag}>"]),
    ]
    block: Wire = {"type": "text", "text": "\n\n".join(parts)}
    if options.cache is not None:
        block["cache_control"] = {"type": "ephemeral"} | ({"ttl": "1h"} if options.cache == "1h" else {})
    exported.tools.append(block)
    return exported


def fill_request(tools: list[Wire], choice: Choice, quirks: Quirks, warnings: list[str]) -> Wire:
    """The system prompt. The choice is a sentence after the cached part."""
    if not tools:
        return {}
    blocks = [dict(tool) for tool in tools]
    sentence = " ".join(_sentences(choice, quirks))
    if sentence and "cache_control" in blocks[-1]:
        blocks.append({"type": "text", "text": sentence})
    elif sentence:
        blocks[-1]["text"] += f"\n\n{sentence}"
    return {"system": blocks}


def read_calls(message: Any, known: Known) -> ParsedMessage:
    """The calls in a model's text, in any known format."""
    source = message_text(message)
    found = read(source.text, known)
    return ParsedMessage(
        calls=found.calls, text=found.text, message_id=source.message_id, is_response=source.is_response
    )


def reply_text(reply: Reply) -> str:
    """A reply as text, with placeholders for files."""
    placeholders = [reply_content.placeholder(media) for media in reply_content.media_of(reply)]
    return "\n".join(filter(None, [reply_content.text_of(reply), *placeholders])) or reply_content.NO_OUTPUT


def escape_closing_tags(dumped: str) -> str:
    """The same JSON without closing tags."""
    return dumped.replace("</", "\\u003c/")


def _unsupported_options(offers: Sequence[ToolOffer], options: ExportOptions) -> list[str]:
    warnings = []
    if options.strict == "on":
        warnings.append("Strict schemas cannot be asked for in plain text; arguments are checked when a call is run.")
    if options.namespace is not None:
        warnings.append(f"Tools have no namespaces in plain text; {options.namespace[0]} is left out.")
    if options.defers is not None and any(options.defers(offer.name) for offer in offers):
        warnings.append(
            "Tools cannot be searched for in plain text; those to be found by search are listed with the others."
        )
    return warnings


def _line(offer: ToolOffer, quirks: Quirks, template: PromptTemplate, warnings: list[str]) -> str:
    takes_text = offer.takes == "input"
    description = offer.description
    if takes_text:
        description += "\nThe input is free text, not JSON."
        description += f" It follows this grammar:\n{offer.grammar}" if offer.grammar else ""
    schema = FREE_FORM if takes_text else offer.schema
    function: Wire = {
        "name": fit_name(offer, quirks, warnings),
        "description": fit_description(offer, description, quirks, warnings),
        "parameters": schema,
    }
    definition = {"type": "function", "function": function} if template.is_wrapped else function
    return escape_closing_tags(json.dumps(definition, ensure_ascii=False, separators=(",", ":")))


def _free_text(offers: Sequence[ToolOffer], quirks: Quirks) -> list[str]:
    names = [wire_name(offer.name, quirks.names) for offer in offers if offer.takes == "input"]
    if not names:
        return []
    return [f"Free text goes whole into the one argument `input`. Tools that take it: {', '.join(names)}."]


def _sentences(choice: Choice, quirks: Quirks) -> list[str]:
    sentences = []
    if choice.mode == "none":
        sentences.append("Call no tool in your next answer; answer in words only.")
    elif choice.mode == "tool" and choice.name is not None:
        sentences.append(f"Your next answer must call the tool {wire_name(choice.name, quirks.names)}, and no other.")
    elif choice.mode in ("required", "tool"):
        sentences.append("Your next answer must call at least one tool.")
    if choice.allowed and choice.mode != "none":
        names = ", ".join(wire_name(name, quirks.names) for name in choice.allowed)
        sentences.append(f"Of the tools, call only these: {names}.")
    if choice.parallel is False:
        sentences.append("Call at most one tool in each answer.")
    return sentences


JSON_PROMPT = """\
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


def export_json(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    return export_prompt(offers, options, PromptTemplate(JSON_PROMPT, "tools", is_wrapped=True))


def write_json_results(replies: Sequence[Reply]) -> list[Wire]:
    """One message with a block for each reply. It has the tool's name, as there are no ids."""
    if not replies:
        return []
    return [{"role": "user", "content": "\n".join(_response_block(reply) for reply in replies)}]


def _response_block(reply: Reply) -> str:
    error = {} if reply.error is None else {"error": reply.error.code}
    content = escape_closing_tags(
        json.dumps({"name": reply.call.name, **error, "content": reply_text(reply)}, ensure_ascii=False)
    )
    return f"<tool_response>\n{content}\n</tool_response>"


json_dialect = Dialect(
    name="text",
    title="Plain text, calls as JSON between tags",
    export_tools=export_json,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_json_results,
    supports=Supports(
        native_tools=False,
        note="For models without tool calls. The tools are a block of the system prompt. Calls are found in "
        "the model's text, also in the formats of Anthropic, MiniMax, Qwen, ChatCLI, Mistral and Llama.",
    ),
    numbers_calls=True,
)


XML_PROMPT = """\
# Tools

You can call the tools that are listed below. To call one, write a block like this one:

<function_calls>
<invoke name="some_tool">
<parameter name="a_text">first line
second line, with "quotes" & <brackets></parameter>
<parameter name="a_list">["a", "b"]</parameter>
</invoke>
</function_calls>

- Each argument is one <parameter>, named as the tool's JSON Schema names it. Arguments that are left out have no tag.
- A text stands there exactly as it is meant: without quotes around it, and nothing in it is escaped. Numbers, true,
  false, null, lists and objects are written as JSON.
- Close every tag. A call without its </invoke> is not run.
- For more calls write more <invoke> elements into the block. Calls in one answer may run at the same time.
- Write the block as it is: a call that stands in a code block with other text, or in quotes, is not run.
- End your answer behind the block. Then you are given <function_results> with a <result> or an <error> for each call,
  in the same order. Never write <function_results> yourself."""

_CLOSING_TAG = re.compile(r"<(?=/(?:function_results|result|error)\b)", re.IGNORECASE)


def export_xml(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    return export_prompt(offers, options, PromptTemplate(XML_PROMPT, "functions"))


def write_xml_results(replies: Sequence[Reply]) -> list[Wire]:
    """One message with an element for each reply. It has the tool's name, as there are no ids."""
    if not replies:
        return []
    elements = "\n".join(_result_element(reply) for reply in replies)
    return [{"role": "user", "content": f"<function_results>\n{elements}\n</function_results>"}]


def _result_element(reply: Reply) -> str:
    tag, name = "result", html.escape(reply.call.name)
    code = ""
    if reply.error is not None:
        tag, code = "error", f' code="{html.escape(reply.error.code)}"'
    return f'<{tag} name="{name}"{code}>\n{_CLOSING_TAG.sub("&lt;", reply_text(reply))}\n</{tag}>'


xml_dialect = Dialect(
    name="text-xml",
    title="Plain text, calls as elements",
    export_tools=export_xml,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_xml_results,
    supports=Supports(
        native_tools=False,
        note="As `text`, but in a format in which long texts need no escapes.",
    ),
    numbers_calls=True,
)
