"""Calls in plain text, by each convention: what counts, what does not, and what is left of the text."""

import json
from itertools import pairwise
from typing import Any

import pytest

from app.providers.text_calls.extract import read
from tests.providers.offers import KNOWN

OSLO: dict[str, Any] = {"name": "get_weather", "arguments": {"location": "Oslo"}}
A_TXT: dict[str, Any] = {"name": "read_file", "arguments": {"path": "a.txt"}}
SESSIONS: dict[str, Any] = {"name": "list_sessions", "arguments": {}}
PATCH: dict[str, Any] = {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}
HERMES = '<tool_call>{"name": "get_weather", "arguments": {"location": "Oslo"}}</tool_call>'
INVOKE = '<invoke name="get_weather"><parameter name="location">Oslo</parameter></invoke>'
QWEN = "<tool_call>\n<function=get_weather>\n<parameter=location>\nOslo\n</parameter>\n</function>\n</tool_call>"
CHATCLI = '<tool_call name="@get_weather" args=\'{"location": "Oslo"}\' />'
MISTRAL = '[TOOL_CALLS]get_weather[ARGS]{"location": "Oslo"}'
LLAMA = '{"name": "get_weather", "parameters": {"location": "Oslo"}}'
PYTHONIC = '[get_weather(location="Oslo")]'
ALL = [HERMES, INVOKE, QWEN, CHATCLI, MISTRAL, LLAMA, PYTHONIC]
IDS = ["hermes", "invokes", "qwen", "chatcli", "mistral", "llama", "pythonic"]


def calls_of(text: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in call.view().items() if key not in ("id", "type")}
        for call in read(text, KNOWN).calls
    ]


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_a_call_is_read_and_taken_out_of_the_text(text: str) -> None:
    found = read(f"I look.\n{text}\n", KNOWN)

    assert calls_of(f"I look.\n{text}\n") == [OSLO]
    assert found.text == "I look."
    assert all(call.id is None and call.type == "function" for call in found.calls)


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_several_calls_of_one_convention_are_read_in_their_order(text: str) -> None:
    other = text.replace("Oslo", "Rome")

    assert [call["arguments"]["location"] for call in calls_of(f"{text}\nand\n{other}\n{text}")] == [
        *("Oslo", "Rome", "Oslo"),
    ]
    assert read(f"{text}\nand\n{other}\n{text}", KNOWN).text == "and"


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_a_name_that_is_not_known_is_text(text: str) -> None:
    other = text.replace("get_weather", "get_wealth")

    assert read(other, KNOWN)[:2] == ((), other)
    assert calls_of(f"{other}\n{text}") == [OSLO]
    assert read(f"{other}\n{text}", KNOWN).text == other


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_what_is_only_quoted_is_text(text: str) -> None:
    for quoted in (f"Write `{text}`, so to say.", f"Write ``{text} ` ``.", f"So:\n```xml\nWrite\n{text}\n```\n"):
        assert read(quoted, KNOWN)[:2] == ((), quoted.strip())


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_a_fenced_block_that_is_nothing_but_calls_counts(text: str) -> None:
    for quoted in (f"So:\n```json\n{text}\n```\nDone.", f"So:\n  ~~~\n\n{text}\n\n  ~~~\nDone."):
        assert calls_of(quoted) == [OSLO]
        assert read(quoted, KNOWN).text == "So:\n\nDone."
    assert calls_of(f"```\n{text}\n{text}\n```") == [OSLO, OSLO]
    assert calls_of(f"```\n{text}") == [OSLO]


@pytest.mark.parametrize("text", ALL, ids=IDS)
def test_what_is_thought_is_neither_searched_nor_said(text: str) -> None:
    assert read(f"<think>I could\n{text}\n</think>\nNo.", KNOWN)[:2] == ((), "No.")
    assert read(f"I could\n{text}\n</think>\nNo.", KNOWN)[:2] == ((), "No.")
    assert read(f"<think>I could\n{text}\n", KNOWN)[:2] == ((), "")
    assert calls_of(f"<think>Hm.</think>\n{text}") == [OSLO]
    assert calls_of(f"```\nHm.</think>\n{text}") == [OSLO]
    assert read(f"Hm. `x` </think>\nSo:\n{text}", KNOWN).text == "So:"


@pytest.mark.parametrize(("first", "second"), [*pairwise(ALL)], ids=IDS[:-1])
def test_the_first_convention_that_finds_a_call_counts_for_the_whole_text(first: str, second: str) -> None:
    later = second.replace("Oslo", "Rome")
    text = f"{later}\nthen\n{first}\nand\n{later}"

    assert calls_of(text) == [OSLO]
    assert read(text, KNOWN).text == f"{later}\nthen\n\nand\n{later}"
    assert [call["arguments"] for call in calls_of(text.replace("then\n" + first, ""))] == [{"location": "Rome"}] * 2


@pytest.mark.parametrize("quoted", ALL, ids=IDS)
def test_what_stands_in_an_argument_is_an_argument(quoted: str) -> None:
    """A file about calls can be written by a call."""
    arguments = {"path": "a.md", "content": f"So:\n{quoted}\n\n```\n<think>`{quoted}"}
    written = {"name": "write_file", "arguments": arguments}
    inside = "".join(f'<parameter name="{name}">{value}</parameter>' for name, value in arguments.items())
    dumped = json.dumps(arguments)

    assert calls_of(f"<tool_call>{json.dumps(written)}</tool_call>") == [written]
    assert calls_of(f'<invoke name="write_file">{inside}</invoke>') == [written]
    assert calls_of(f"[TOOL_CALLS]write_file[ARGS]{dumped}") == [written]
    assert calls_of(f"<|python_tag|>{json.dumps(written)}") == [written]
    assert calls_of(f"[write_file(path='a.md', content={json.dumps(arguments['content'])})]") == [written]


def test_what_stands_in_data_is_data() -> None:
    assert calls_of(json.dumps({"answers": [OSLO]})) == []
    assert calls_of(json.dumps([{"a": 1}, {"b": OSLO}])) == []
    assert calls_of(json.dumps({"text": HERMES})) == []


def test_a_text_without_calls_stays_as_it_is() -> None:
    for text in ("", "Hello.", "a < b { c } [d] `e` <tool_call> <invoke> [x(1)]", "```python\nprint(1)\n```"):
        assert read(text, KNOWN)[:2] == ((), text)
