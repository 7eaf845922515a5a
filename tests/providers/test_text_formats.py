"""Each convention in its forms: what models really write, and what is wrong with it."""

import json
from typing import Any

import pytest

from app.providers.text_calls.extract import read
from tests.providers.offers import KNOWN

WEATHER = "get_weather"
OSLO: dict[str, Any] = {"name": WEATHER, "arguments": {"location": "Oslo"}}
A_TXT: dict[str, Any] = {"name": "read_file", "arguments": {"path": "a.txt"}}
SESSIONS: dict[str, Any] = {"name": "list_sessions", "arguments": {}}
PATCH: dict[str, Any] = {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}
REPAIRED: dict[str, Any] = {**OSLO, "repaired": True}
PREFIX = "ant" + "ml:"

Case = tuple[str, list[dict[str, Any]], str]

TEXTS: dict[str, Case] = {
    "hermes: two objects in one tag": (
        '<tool_call>{"name": "list_sessions"}\n{"name": "list_sessions", "arguments": null}</tool_call>',
        [SESSIONS, SESSIONS],
        "",
    ),
    "hermes: a list in one tag": (f"<tool_call>{json.dumps([OSLO, A_TXT])}</tool_call>", [OSLO, A_TXT], ""),
    "hermes: the last tag not closed": (f"So: <tool_call>\n{json.dumps(OSLO)}\n", [OSLO], "So:"),
    "hermes: opened again instead of closed": (
        f"<tool_call>{json.dumps(OSLO)}\n<tool_call>{json.dumps(A_TXT)}<tool_call>",
        [OSLO, A_TXT],
        "<tool_call>",
    ),
    "hermes: not closed before other text": (f"<tool_call>{json.dumps(OSLO)} And so on.", [OSLO], "And so on."),
    "hermes: arguments in a string": (
        f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(json.dumps(OSLO["arguments"]))}}}</tool_call>',
        [OSLO],
        "",
    ),
    "hermes: arguments under the name that Llama has for them": (
        '<tool_call>{"name": "get_weather", "parameters": {"location": "Oslo"}}</tool_call>',
        [OSLO],
        "",
    ),
    "hermes: tags in a string": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "</tool_call><tool_call>"}}</tool_call>.',
        [{"name": WEATHER, "arguments": {"location": "</tool_call><tool_call>"}}],
        ".",
    ),
    "hermes: free text": (f"<tool_call>{json.dumps(PATCH)}</tool_call>", [PATCH], ""),
    "hermes: free text as it is": (
        '<tool_call>{"name": "apply_patch", "arguments": "*** Begin Patch"}</tool_call>',
        [PATCH],
        "",
    ),
    "hermes: in a fence of its own": (f"<tool_call>\n```json\n{json.dumps(OSLO)}\n```\n</tool_call>", [REPAIRED], ""),
    "hermes: as Python writes it": (f"<tool_call>{OSLO}</tool_call>", [REPAIRED], ""),
    "hermes: a comma too many": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Oslo",},}</tool_call>',
        [REPAIRED],
        "",
    ),
    "hermes: a raw line break": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Os\nlo"}}</tool_call>',
        [{"name": WEATHER, "arguments": {"location": "Os\nlo"}, "repaired": True}],
        "",
    ),
    "hermes: one known, one not": (
        f'<tool_call>{{"name": "x"}}</tool_call><tool_call>{json.dumps(OSLO)}</tool_call>',
        [OSLO],
        '<tool_call>{"name": "x"}</tool_call>',
    ),
    "invokes: wrapped": (
        'Hm.\n<function_calls>\n<invoke name="get_weather">\n<parameter name="location">Oslo</parameter>\n</invoke>\n'
        '<invoke name="list_sessions">\n</invoke>\n</function_calls>',
        [OSLO, SESSIONS],
        "Hm.",
    ),
    "invokes: wrapped by MiniMax": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="location">Oslo</parameter>\n</invoke>\n'
        "</minimax:tool_call>\nHm.",
        [OSLO],
        "Hm.",
    ),
    "invokes: the wrapper not closed": (
        '<function_calls><invoke name="get_weather"><parameter name="location">Oslo</parameter></invoke>\n',
        [OSLO],
        "",
    ),
    "invokes: with a prefix": (
        f'<{PREFIX}function_calls><{PREFIX}invoke name="get_weather"><{PREFIX}parameter name="location">Oslo'
        f"</{PREFIX}parameter></{PREFIX}invoke></{PREFIX}function_calls>",
        [OSLO],
        "",
    ),
    "invokes: single quotes, no parameters": ("<invoke name='list_sessions'/>", [SESSIONS], ""),
    "invokes: more attributes": (
        '<invoke name="get_weather" id="1"><parameter name="location" string="true">Oslo</parameter></invoke>',
        [OSLO],
        "",
    ),
    "invokes: values by the schema": (
        '<invoke name="search"><parameter name="query">5</parameter><parameter name="limit"> 5 </parameter>'
        '<parameter name="is_exact">True</parameter><parameter name="tags">["a", "b"]</parameter>'
        '<parameter name="within">{"a": null}</parameter></invoke>',
        [
            {
                "name": "search",
                "arguments": {"query": "5", "limit": 5, "is_exact": True, "tags": ["a", "b"], "within": {"a": None}},
            }
        ],
        "",
    ),
    "invokes: a value keeps its spaces and needs no escapes": (
        '<invoke name="write_file"><parameter name="path">a</parameter><parameter name="content">\n  a < b && "c"\n'
        "</parameter></invoke>",
        [{"name": "write_file", "arguments": {"path": "a", "content": '\n  a < b && "c"\n'}}],
        "",
    ),
    "invokes: a closing tag in a value": (
        '<invoke name="write_file"><parameter name="content">a </parameter> b </invoke> c</parameter></invoke>',
        [{"name": "write_file", "arguments": {"content": "a </parameter> b </invoke> c"}}],
        "",
    ),
    "invokes: a closing tag forgotten": (
        '<invoke name="write_file">\n<parameter name="path">a\n  <parameter name="content">b</parameter>\n</invoke>',
        [{"name": "write_file", "arguments": {"path": "a", "content": "b"}, "repaired": True}],
        "",
    ),
    "invokes: the last closing tag forgotten": (
        '<invoke name="get_weather">\n<parameter name="location">Oslo\n</invoke>\n',
        [REPAIRED],
        "",
    ),
    "invokes: free text": (
        '<invoke name="apply_patch"><parameter name="input">*** Begin Patch</parameter></invoke>',
        [PATCH],
        "",
    ),
    "invokes: one known, one not": (
        '<function_calls><invoke name="x"></invoke><invoke name="list_sessions"></invoke></function_calls>',
        [SESSIONS],
        '<invoke name="x"></invoke>',
    ),
    "invokes: only spoken of": (
        'Write <invoke name="get_weather"> first.',
        [],
        'Write <invoke name="get_weather"> first.',
    ),
    "qwen: without its wrapper": (
        "<function=get_weather>\n<parameter=location>\nOslo\n</parameter>\n</function>\n</tool_call>",
        [OSLO],
        "",
    ),
    "qwen: several in one wrapper": (
        "<tool_call><function=list_sessions></function>\n<function=list_sessions>\n</function></tool_call>",
        [SESSIONS, SESSIONS],
        "",
    ),
    "qwen: one line break on each side is not the value's": (
        "<tool_call><function=write_file><parameter=path>\r\na\r\n</parameter><parameter=content>\n\n  b\n\n"
        "</parameter></function></tool_call>",
        [{"name": "write_file", "arguments": {"path": "a", "content": "\n  b\n"}}],
        "",
    ),
    "qwen: values by the schema": (
        "<tool_call><function=read_file><parameter=path>\n5\n</parameter><parameter=limit>\nnull\n</parameter></function>"
        "</tool_call>",
        [{"name": "read_file", "arguments": {"path": "5", "limit": None}}],
        "",
    ),
    "chatcli: entities": (
        '<tool_call name="@get_weather" args="{&quot;location&quot;: &quot;Os&#108;o&quot;}" /> ok',
        [OSLO],
        "ok",
    ),
    "chatcli: escaped quotes": (r'<tool_call name="@get_weather" args="{\"location\": \"Oslo\"}" />', [OSLO], ""),
    "chatcli: in pairs, in any order, in any case": (
        '<TOOL_CALL args=\'{"location": "Oslo"}\'\n  name="@get_weather"></Tool_Call> ok',
        [OSLO],
        "ok",
    ),
    "chatcli: the short tag without quotes": ("<tool name=@list_sessions />", [SESSIONS], ""),
    "chatcli: the short tag without quotes and spaces": ("<tool name=@list_sessions/>.", [SESSIONS], "."),
    "chatcli: a bracket in a value": (
        """<tool name="@get_weather" args='{"location": "a > b"}'/>""",
        [{"name": WEATHER, "arguments": {"location": "a > b"}}],
        "",
    ),
    "chatcli: JSON's own escapes": (
        r"""<tool name="@get_weather" args='{"location": "\u0041\nB"}'/>""",
        [{"name": WEATHER, "arguments": {"location": "A\nB"}}],
        "",
    ),
    "chatcli: backslashes that were not doubled": (
        r"""<tool name="@get_weather" args='{"location": "\\d"}'/>""",
        [{"name": WEATHER, "arguments": {"location": r"\d"}, "repaired": True}],
        "",
    ),
    "chatcli: arguments between the tags": (
        '<tool_call name="@get_weather">{"location": "Oslo"}</tool_call>',
        [OSLO],
        "",
    ),
    "chatcli: single quotes": ("""<tool name="@get_weather" args="{'location': 'Oslo'}"/>""", [REPAIRED], ""),
    "chatcli: free text": ('<tool name="@apply_patch" args="*** Begin Patch"/>', [PATCH], ""),
    "chatcli: a tag without a name": ('<tool args="{}"/> x', [], '<tool args="{}"/> x'),
    "chatcli: no tag": ("a <tool is = x", [], "a <tool is = x"),
    "chatcli: the tag's end cut away": ("""<tool name="@get_weather" args='{"location": "Oslo"}'""", [OSLO], ""),
    "chatcli: an object": ('{"tool_call": "@get_weather", "args": {"location": "Oslo"}}', [OSLO], ""),
    "chatcli: an object by another name": ('So {"tool": "@get_weather", "args": {"location": "Oslo"}}', [OSLO], "So"),
    "chatcli: an object by a third name": ('{"name": "@get_weather", "arguments": {"location": "Oslo"}}', [OSLO], ""),
    "chatcli: an object that only names a tool": ('{"name": "@get_weather"}', [], '{"name": "@get_weather"}'),
    "chatcli: an answer of a search": (
        '{"tool": "@get_weather", "url": "https://example.com"}',
        [],
        '{"tool": "@get_weather", "url": "https://example.com"}',
    ),
    "chatcli: brackets": ('So [tool: @get_weather {"location": "Oslo"}] it is', [OSLO], "So  it is"),
    "chatcli: brackets without an end": ('[tool_call: get_weather {"location": "Oslo"}', [OSLO], ""),
    "chatcli: brackets without arguments": ("[Tool: @list_sessions]", [SESSIONS], ""),
    "chatcli: brackets around free text": ("[tool: @apply_patch *** Begin Patch ]", [PATCH], ""),
    "chatcli: brackets are the last resort": (
        '[tool: @list_sessions]\n<tool name="@get_weather" args=\'{"location": "Oslo"}\'/>',
        [OSLO],
        "[tool: @list_sessions]",
    ),
    "chatcli: an object that says what was called": (
        '{"tool": "search", "status": "done"}',
        [],
        '{"tool": "search", "status": "done"}',
    ),
    "chatcli: an object without the @": ('{"tool": "get_weather", "args": {"location": "Oslo"}}', [OSLO], ""),
    "chatcli: words in brackets": ("[tool: search is done]", [], "[tool: search is done]"),
    "chatcli: what a tag of another tool holds": (
        f'<tool_call name="@x">{json.dumps(OSLO)}</tool_call>',
        [],
        f'<tool_call name="@x">{json.dumps(OSLO)}</tool_call>',
    ),
    "mistral: a list": (f"Hm.[TOOL_CALLS] {json.dumps([OSLO, A_TXT])} Hm.", [OSLO, A_TXT], "Hm. Hm."),
    "mistral: a name and arguments": (
        '[TOOL_CALLS]get_weather[ARGS]{"location": "Oslo"}[TOOL_CALLS]list_sessions[ARGS]{}',
        [OSLO, SESSIONS],
        "",
    ),
    "mistral: with an id": ('[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"location": "Oslo"}', [OSLO], ""),
    "mistral: several behind one mark": (
        '[TOOL_CALLS]get_weather{"location": "Oslo"}list_sessions{}',
        [OSLO, SESSIONS],
        "",
    ),
    "mistral: as Python writes it": (f"[TOOL_CALLS]{[OSLO]}", [REPAIRED], ""),
    "llama: behind its tag": (
        '<|python_tag|>{"name": "get_weather", "parameters": {"location": "Oslo"}}; {"name": "list_sessions"}'
        "<|eom_id|>",
        [OSLO, SESSIONS],
        "",
    ),
    "llama: by themselves": (
        'So: {"name": "get_weather", "arguments": {"location": "Oslo"}}; {"name": "list_sessions", "parameters": {}}',
        [OSLO, SESSIONS],
        "So:",
    ),
    "llama: in a list": (f"[ {json.dumps(OSLO)},\n{json.dumps(A_TXT)} ]", [OSLO, A_TXT], ""),
    "llama: as Python writes it": (str(OSLO), [REPAIRED], ""),
    "llama: an object that only names a tool": ('{"name": "search"}', [], '{"name": "search"}'),
    "llama: the definition of a tool": (
        '{"name": "search", "description": "Search.", "parameters": {"type": "object"}}',
        [],
        '{"name": "search", "description": "Search.", "parameters": {"type": "object"}}',
    ),
    "llama: code behind its tag": ("<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
    "pythonic: several": (
        "[get_weather(location=\"Oslo\"), read_file(path='a.txt', limit=None,),\n list_sessions( )]\nSo.",
        [OSLO, {"name": "read_file", "arguments": {"path": "a.txt", "limit": None}}, SESSIONS],
        "So.",
    ),
    "pythonic: all literals": (
        "[search(query='it\\'s', limit=-5, is_exact=True, tags=['a', \"b\"], within={'a': [1.5, None, {}]})]",
        [
            {
                "name": "search",
                "arguments": {
                    **{"query": "it's", "limit": -5, "is_exact": True},
                    **{"tags": ["a", "b"], "within": {"a": [1.5, None, {}]}},
                },
            }
        ],
        "",
    ),
    "pythonic: long strings": (
        '[write_file(path="a", content="""x "y"\nz]""")]',
        [{"name": "write_file", "arguments": {"path": "a", "content": 'x "y"\nz]'}}],
        "",
    ),
    "pythonic: between special tokens": (
        '<|tool_call_start|>[get_weather(location="Oslo")]<|tool_call_end|>',
        [OSLO],
        "",
    ),
    "pythonic: the end of the list cut away": ('[get_weather(location="Oslo")', [OSLO], ""),
    "pythonic: a link": ("[search(2)](https://example.com)", [], "[search(2)](https://example.com)"),
    "pythonic: in a line of text": ("So [list_sessions()]", [], "So [list_sessions()]"),
    "pythonic: no list of calls": ("[search(x=1) is it]", [], "[search(x=1) is it]"),
}


def test_a_text_is_read_as_its_model_means_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[dict[str, Any]], str]] = list(TEXTS.values())
    for text, calls, rest in cases:
        with subtests.test(text=text, calls=calls, rest=rest):
            found = read(text, KNOWN)

            assert [
                {key: value for key, value in call.view().items() if key not in ("id", "type")} for call in found.calls
            ] == calls
            assert found.text == rest
