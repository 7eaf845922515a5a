"""Calls as Claude writes them without a tool interface, and MiniMax with a wrapper of its own.

<function_calls><invoke name="x"><parameter name="p">value</parameter></invoke></function_calls>
"""

import re

from app.providers.text_calls.formats.xml_params import Grammar, Tags, read
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

_PREFIX = "(?:antml:)?+"
_NAMED = r"""[ \t\r\n]{1,8}name[ ]?=[ ]?(?:"[^"<>\n]{1,256}"|'[^'<>\n]{1,256}')[^<>\n]{0,128}>"""
_GRAMMAR = Grammar(
    Tags(
        call=f"<{_PREFIX}invoke{_NAMED}",
        call_end=f"</{_PREFIX}invoke>",
        parameter=f"<{_PREFIX}parameter{_NAMED}",
        parameter_end=f"</{_PREFIX}parameter>",
        wrapper=f"<(?:{_PREFIX}function_calls|minimax:tool_call)>",
        unwrapper=f"</(?:{_PREFIX}function_calls|minimax:tool_call)>",
        name_in=re.compile(r"""name[ ]?=[ ]?("[^"]*"|'[^']*')"""),
    )
)


def _read(page: ScannedText, start: int) -> FoundCall | None:
    return read(page, start, _GRAMMAR)


convention = CallFormat(
    name="invokes", opening=rf"<(?:{_PREFIX}(?:function_calls>|invoke[ \t\r\n])|minimax:tool_call>)", read=_read
)
