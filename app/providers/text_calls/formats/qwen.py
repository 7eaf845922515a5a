"""Calls as Qwen3-Coder and its relatives write them. A value has a line break on each side that is not its own.

<tool_call><function=x><parameter=p>
value
</parameter></function></tool_call>
"""

import re

from app.providers.text_calls.formats.xml_params import Grammar, Tags, read
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

_GRAMMAR = Grammar(
    Tags(
        call=r"<function=[^<>\n]{1,256}>",
        call_end="</function>",
        parameter=r"<parameter=[^<>\n]{1,256}>",
        parameter_end="</parameter>",
        wrapper="<tool_call>",
        unwrapper="</tool_call>",
        name_in=re.compile(r"=([^>]*)"),
        trims=True,
    )
)


def _read(page: ScannedText, start: int) -> FoundCall | None:
    return read(page, start, _GRAMMAR)


convention = CallFormat(name="qwen", opening="<tool_call>|<function=", read=_read)
