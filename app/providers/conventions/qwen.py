"""Calls as Qwen3-Coder and its relatives write them. A value has a line break on each side that is not its own.

<tool_call><function=x><parameter=p>
value
</parameter></function></tool_call>
"""

import re

from app.providers.conventions.elements import Grammar, Tags, read
from app.providers.scanning import Convention, Found, Page

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


def _read(page: Page, start: int) -> Found | None:
    return read(page, start, _GRAMMAR)


convention = Convention(name="qwen", opening="<tool_call>|<function=", read=_read)
