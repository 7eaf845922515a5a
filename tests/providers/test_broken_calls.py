"""Calls that cannot be read, or were cut: never dropped, never guessed at, and never more than they were."""

import html
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.providers.text_calls.extract import read
from tests.providers.offers import KNOWN

LOCATION = '{"location": "Oslo"'
Case = tuple[str, str, str, str]

BROKEN: dict[str, Case] = {
    "hermes: an open string": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Os',
        "Unterminated string starting at: line 1 column 51 (char 50)",
        '{"name": "get_weather", "arguments": {"location": "Os',
        "",
    ),
    "hermes: an open string that its tag follows": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Os}}</tool_call>',
        "(char 50)",
        '{"name": "get_weather", "arguments": {"location": "Os}}</tool_call>',
        "",
    ),
    "hermes: an open bracket": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Oslo"}</tool_call>.',
        "(char 57)",
        '{"name": "get_weather", "arguments": {"location": "Oslo"}',
        ".",
    ),
    "hermes: a bracket too many": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "Oslo"}}}</tool_call>.',
        "Extra data: line 1 column 59 (char 58)",
        '{"name": "get_weather", "arguments": {"location": "Oslo"}}}',
        ".",
    ),
    "hermes: no object": (
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        "must be an object, not a list",
        "[1]",
        "",
    ),
    "hermes: no object in a string": (
        '<tool_call>{"name": "get_weather", "arguments": "Oslo"}</tool_call>',
        "(char 0)",
        "Oslo",
        "",
    ),
    "hermes: no JSON knows such a number": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": NaN}}</tool_call>',
        "NaN (char 50) is no number",
        '{"name": "get_weather", "arguments": {"location": NaN}}',
        "",
    ),
    "hermes: quotes that were not escaped": (
        '<tool_call>{"name": "get_weather", "arguments": {"location": "a "b" <tool_call>c</tool_call>"}}</tool_call>.',
        "(char 54)",
        '{"name": "get_weather", "arguments": {"location": "a "b" <tool_call>c</tool_call>"}}',
        ".",
    ),
    "invokes: no end": (
        '<function_calls><invoke name="get_weather"><parameter name="location">Oslo</parameter>',
        "the message ended at character 70 of it",
        '<parameter name="location">Oslo</parameter>',
        "",
    ),
    "invokes: an open value": (
        '<invoke name="get_weather"><parameter name="location">Os',
        "the message ended at character 56 of it",
        '<parameter name="location">Os',
        "",
    ),
    "invokes: something else": (
        '<invoke name="get_weather">{"location": "Oslo"}</invoke>.',
        "expected at character 27 of the call",
        '{"location": "Oslo"}',
        ".",
    ),
    "invokes: a value given twice": (
        '<invoke name="get_weather"><parameter name="location">Oslo</parameter>'
        '<parameter name="location">Rome</parameter></invoke>.',
        "location has a second value at character 70 of the call",
        '<parameter name="location">Oslo</parameter><parameter name="location">Rome</parameter>',
        ".",
    ),
    "qwen: no end": (
        "<tool_call><function=get_weather><parameter=location>Oslo</parameter></function",
        "character 68 of it",
        "<parameter=location>Oslo</parameter></function",
        "",
    ),
    "chatcli: an open attribute": (
        """<tool name="@get_weather" args='{"location": "Oslo"}""",
        "not closed, from character 31",
        """'{"location": "Oslo"}""",
        "",
    ),
    "chatcli: no arguments yet": ('<tool name="@get_weather"', "not closed, from character 25", "", ""),
    "chatcli: arguments that are cut between the tags": (
        '<tool_call name="@get_weather">{"location": "Oslo"}',
        "not closed, from character 31",
        '{"location": "Oslo"}',
        "",
    ),
    "chatcli: no JSON": ('<tool name="@get_weather" args="in Oslo"/>.', "(char 0)", "in Oslo", "."),
    "chatcli: an open object": ('{"tool_call": "@get_weather", "args": {"loc', "(char 39)", "", ""),
    "chatcli: brackets without an end": ("[tool: @list_sessions", "not closed", "", ""),
    "mistral: an open list": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"location": "Oslo"}}',
        "(char 59)",
        '[{"name": "get_weather", "arguments": {"location": "Oslo"}}',
        "",
    ),
    "mistral: an open object": ('[TOOL_CALLS]get_weather[ARGS]{"location": "Os', "(char 13)", '{"location": "Os', ""),
    "llama: an open object behind the tag": ('<|python_tag|>{"name": "get_weather", "para', "(char 24)", "", ""),
    "llama: an open object": ('{"name": "get_weather", "parameters": {"location": "Os', "(char 51)", "", ""),
    "llama: no JSON": (
        '{"name": "get_weather", "parameters": {"location": "Oslo" "unit": 1}}\nSo.',
        "(char 58)",
        '{"name": "get_weather", "parameters": {"location": "Oslo" "unit": 1}}',
        "So.",
    ),
    "pythonic: an open string": ('[get_weather(location="Os', "cannot be read from character 9 on", 'location="Os', ""),
    "pythonic: no name": ('[get_weather("Oslo")]', "argument 1 is no literal", '"Oslo"', ""),
    "pythonic: no literal": ("[get_weather(location=oslo())]", "argument 1 is no literal", "location=oslo()", ""),
    "pythonic: a sum": ("[get_weather(location=1 + 1)]", "cannot be read from character 11 on", "", ""),
    "pythonic: given twice": ("[get_weather(unit='a', unit='b')]", "argument 2 is no literal", "", ""),
}


def test_a_call_that_cannot_be_read_is_kept_with_what_is_wrong(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str, str]] = list(BROKEN.values())
    for text, reason, raw, rest in cases:
        with subtests.test(text=text, reason=reason, raw=raw, rest=rest):
            found = read(text, KNOWN)

            [call] = found.calls
            assert call.name in ("get_weather", "list_sessions")
            assert call.arguments is None
            assert reason in (call.arguments_error or "")
            assert raw in (call.raw_arguments or "")
            assert found.text == rest


def test_of_several_calls_only_the_broken_one_is_refused() -> None:
    whole = '<tool_call>{"name": "list_sessions"}</tool_call>'
    broken = '<tool_call>{"name": "get_weather", "arguments": {location: 1}}</tool_call>'

    assert [call.arguments for call in read(whole + broken + whole, KNOWN).calls] == [{}, None, {}]
    assert [call.arguments for call in read("[list_sessions(), get_weather(1), list_sessions()]", KNOWN).calls] == [
        *({}, None, {})
    ]


def test_broken_json_of_a_tool_that_is_not_known_is_text() -> None:
    for text in (
        '<tool_call>{"name": "x", "arguments": {"a": "',
        "[TOOL_CALLS]x[ARGS]{",
        '{"name": "x", "parameters": ',
    ):
        assert read(text, KNOWN)[:2] == ((), text.strip())


def test_a_tool_is_only_asked_for_by_names_that_can_be_one() -> None:
    asked: list[str] = []

    def known(name: str) -> None:
        asked.append(name)

    for name in ("x" * 257, "", "x" * 256, "y", "y"):
        read(f'<tool_call>{{"name": "{name}"}}</tool_call>', known)
        read(f'<tool_call>{{"name": {json.dumps([name])}}}</tool_call>', known)

    assert asked == ["x" * 256, "y", "y"]


INNER = "<tool_call>{'name': 'list_sessions'}</tool_call> <invoke name=\"list_sessions\"></invoke> [list_sessions()]"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(INNER),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=3)


@settings(max_examples=30)
@given(arguments)
@example({"path": "a.md", "content": INNER})
@example({"content": f"'\"\\ \n{INNER}\n```\n</think>"})
def test_a_cut_call_is_never_a_call_with_other_arguments(given: dict[str, Any]) -> None:
    """Wherever it is cut: no call, one that is refused, or exactly the one that was written."""
    call = {"name": "write_file", "arguments": given}
    for text in (
        f"<tool_call>\n{json.dumps(call)}\n</tool_call>",
        f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>",
        f"[TOOL_CALLS]{json.dumps([call])}",
        f"[TOOL_CALLS]write_file[ARGS]{json.dumps(given)}",
        f"<|python_tag|>{json.dumps(call)}",
        json.dumps(call),
    ):
        for cut in range(len(text) + 1):
            found = read(text[:cut], KNOWN).calls
            assert len(found) <= 1
            assert all(made.arguments_error or made.arguments == given for made in found)
            assert all(made.name == "write_file" for made in found)


strings = st.dictionaries(
    st.sampled_from(["path", "content", "mode"]), st.text(max_size=12) | st.just(INNER), min_size=1
)


@settings(max_examples=30)
@given(strings)
@example({"path": "'\"\\&quot; />", "content": "</tool_call> ]) )]\n"})
def test_a_cut_call_of_another_form_is_never_one_with_other_arguments(given: dict[str, str]) -> None:
    args = html.escape(json.dumps(given)).replace("\\", "\\\\")
    for text in (
        f'<tool name="@write_file" args="{args}" />',
        f'<tool_call args="{args}" name="@write_file"></tool_call>',
        f"[tool: @write_file {json.dumps(given)}]",
        f'<tool_call name="@write_file">{html.escape(json.dumps(given))}</tool_call>',
        f"[write_file({', '.join(f'{name}={value!r}' for name, value in given.items())})]",
    ):
        assert [made.arguments for made in read(text, KNOWN).calls] == [given]
        for cut in range(len(text)):
            found = read(text[:cut], KNOWN).calls
            assert all(made.arguments_error or made.arguments == given for made in found)
            assert all(made.name == "write_file" for made in found)


@settings(max_examples=30)
@given(strings)
def test_a_cut_element_is_never_a_call(given: dict[str, str]) -> None:
    invoked = "".join(f'<parameter name="{name}">{value}</parameter>' for name, value in given.items())
    qwen = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in given.items())
    for text in (f'<invoke name="write_file">{invoked}</invoke>', f"<function=write_file>\n{qwen}</function>"):
        for cut in range(len(text)):
            found = read(text[:cut], KNOWN).calls
            assert all(made.arguments_error and made.name == "write_file" for made in found)
