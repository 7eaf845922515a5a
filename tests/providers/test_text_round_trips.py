"""What is written by a convention is read back as it was, and nothing makes the reader fail or dawdle."""

import html
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.core.runs import ToolOffer
from app.providers.text_calls.extract import read
from tests.providers.neutral import knowing
from tests.providers.offers import KNOWN

Arguments = dict[str, Any]
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
members = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
inner = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(inner, max_size=3),
    "object": st.dictionaries(st.text(max_size=5), inner, max_size=3),
}
TAGS = ("<", ">", "`", "~~~")
"""What a value without escapes must not have, as it could be a tag."""


@st.composite
def tools_with_arguments(draw: st.DrawFn) -> tuple[ToolOffer, Arguments]:
    kinds = draw(st.dictionaries(members, st.sampled_from(list(KINDS)), max_size=4))
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}}
    offer = ToolOffer(name=draw(names), description="", schema=schema)
    return offer, {name: draw(KINDS[kind]) for name, kind in kinds.items()}


def hermes(name: str, given: Arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"


def invokes(name: str, given: Arguments) -> str:
    inside = "".join(f'\n<parameter name="{member}">{plain(value)}</parameter>' for member, value in given.items())
    return f'<function_calls>\n<invoke name="{name}">{inside}\n</invoke>\n</function_calls>'


def qwen(name: str, given: Arguments) -> str:
    inside = "".join(f"<parameter={member}>\n{plain(value)}\n</parameter>\n" for member, value in given.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def chatcli(name: str, given: Arguments) -> str:
    args = html.escape(json.dumps(given)).replace("\\", "\\\\")
    return f'<tool_call name="@{name}" args="{args}" />'


def mistral(name: str, given: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given, ensure_ascii=False)}"


def mistral_list(name: str, given: Arguments) -> str:
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': given}])}"


def llama(name: str, given: Arguments) -> str:
    return f"<|python_tag|>{json.dumps({'name': name, 'parameters': given})}"


def llama_by_itself(name: str, given: Arguments) -> str:
    return json.dumps({"name": name, "parameters": given}, indent=1)


def pythonic(name: str, given: Arguments) -> str:
    return f"[{name}({', '.join(f'{member}={value!r}' for member, value in given.items())})]"


WRITERS = [hermes, invokes, qwen, chatcli, mistral, mistral_list, llama, llama_by_itself, pythonic]


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: str(write.__name__))
@given(tools_with_arguments(), st.sampled_from(["", "Let me see.", "a > b, it's {so}"]))
def test_what_is_written_is_read_back(
    write: Callable[[str, Arguments], str], made: tuple[ToolOffer, Arguments], said: str
) -> None:
    offer, given = made
    if write in (invokes, qwen):
        assume(not any(tag in plain(value) for value in given.values() for tag in TAGS))
    text = f"{said}\n\n{write(offer.name, given)}"

    found = read(text, knowing(offer))

    assert [(call.name, call.arguments, call.arguments_error) for call in found.calls] == [(offer.name, given, None)]
    assert not found.calls[0].is_repaired
    assert found.text == said


PIECES = [
    *("<tool_call>", "</tool_call>", "<tool ", '<tool name="@search" args=', '<invoke name="search">', "</invoke>"),
    *('<parameter name="a">', '\n<parameter name="b">', "</parameter>", "<function=search>", "</function>"),
    *("<parameter=a>", "[TOOL_CALLS]", "search", "[ARGS]", "<|python_tag|>", "{", "}", "[", "]", '"', "'", "\\", "`"),
    *("```", "\n```\n", "\n~~~\n", "<think>", "</think>", '{"name": "search", "arguments": ', '{"name":"x",'),
    *("\n[search(", "x=1", ")", ",", ";", ":", " ", "\n", "\n\n", "a", "[tool: @search ", '<invoke name="x">'),
    *('{"tool_call": "@search", "args": ', "name=", 'args="', "/>", ">", "&#39;", "1", "null", "<function_calls>"),
    *("<minimax:tool_call>", '"name": "search"', '"""', "'''", '\\"', "&", "NaN", "{'name': 'search'}", "-"),
]
FAMILIES = {
    "open tags": "<tool_call>",
    "open tags with braces": "<tool_call>{",
    "open tags in strings": '<tool_call>{"a":"',
    "open tags in strings of both kinds": "<tool_call>[\"<tool_call>['<tool_call>[",
    "nested objects": '{"name":',
    "nested lists": "[",
    "elements in elements": '<invoke name="search"><parameter name="a"><invoke name="search"><parameter name="a">x'
    "</parameter></invoke>",
    "elements that have no end": '<invoke name="search"><parameter name="a">',
    "elements spoken of": '<invoke name="search">x',
    "attributes in attributes": ' x="<tool y=z" ',
    "backticks": "`a``b```c````d",
    "fences in fences": "```\n~~~\n````\n",
    "calls in lines": "\n[search(x=[",
    "marks": "[TOOL_CALLS]search[ARGS]{",
    "entities": '<tool name="&#',
}


def test_the_work_grows_with_the_text_and_no_faster(subtests: pytest.Subtests) -> None:
    units: list[str] = list(FAMILIES.values())
    for unit in units:
        for end in ["", "</invoke>", '"}', "!", "</tool_call>"]:
            with subtests.test(unit=unit, end=end):
                count = 25_000 // len(unit)
                little, much = unit * count + end, unit * 4 * count + end

                assert read(much, KNOWN).steps <= 4.5 * read(little, KNOWN).steps + 2000


@pytest.mark.parametrize("seed", range(8))
def test_a_long_text_of_tags_and_braces_is_read_in_a_few_looks(seed: int) -> None:
    dice = random.Random(seed)
    pieces = PIECES if seed == 0 else dice.sample(PIECES, 6)
    text = "".join(dice.choice(pieces) for _ in range(100_000))[:100_000]

    assert read(text, KNOWN).steps <= 25 * len(text)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join), st.sampled_from(PIECES))
def test_no_mixture_of_tags_makes_more_work_than_its_length(unit: str, end: str) -> None:
    little, much = unit * 60 + end, unit * 240 + end

    assert read(much, KNOWN).steps <= 4.5 * read(little, KNOWN).steps + 2000


@settings(max_examples=500)
@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
def test_any_text_is_read(text: str) -> None:
    found = read(text, KNOWN)

    assert all((call.arguments is None) == (call.arguments_error is not None) for call in found.calls)
    assert all(KNOWN(call.name) for call in found.calls)
    assert found.text == found.text.strip()
    assert len(found.text) <= len(text)
