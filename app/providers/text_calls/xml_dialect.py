"""Dialect `text-xml`: calls as elements, as Claude writes them. Long texts need no escapes in it."""

import html
import re
from collections.abc import Sequence
from typing import Any

from app.core.runs import Reply, ToolOffer
from app.providers.dialects import Dialect, Exported, ExportOptions, Supports, Wire
from app.providers.text_calls.dialect import PromptTemplate, fill_request, read_calls, said_by, teach

WORDS = """\
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

_OUR_END = re.compile(r"<(?=/(?:function_results|result|error)\b)", re.IGNORECASE)


def export_tools(offers: Sequence[ToolOffer], options: ExportOptions) -> Exported:
    return teach(offers, options, PromptTemplate(WORDS, "functions", _shown))


def _shown(name: str, description: str, schema: dict[str, Any]) -> Wire:
    return {"name": name, "description": description, "parameters": schema}


def write_results(replies: Sequence[Reply]) -> list[Wire]:
    """One message with an element for each reply. The name is repeated, because there are no ids."""
    if not replies:
        return []
    elements = "\n".join(_element(reply) for reply in replies)
    return [{"role": "user", "content": f"<function_results>\n{elements}\n</function_results>"}]


def _element(reply: Reply) -> str:
    tag, name = "result", html.escape(reply.call.name)
    code = ""
    if reply.error is not None:
        tag, code = "error", f' code="{html.escape(reply.error.code)}"'
    return f'<{tag} name="{name}"{code}>\n{_OUR_END.sub("&lt;", said_by(reply))}\n</{tag}>'


dialect = Dialect(
    name="text-xml",
    title="Plain text, calls as elements",
    export_tools=export_tools,
    fill_request=fill_request,
    read_calls=read_calls,
    write_results=write_results,
    supports=Supports(
        native_tools=False,
        note="As `text`, but the model is taught a convention in which long texts need no escapes.",
    ),
    numbers_calls=True,
)
