"""Calls in responses, read."""

import copy
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.runs import ModelCall, ParsedMessage, Unreadable
from app.providers.dialects import Wire
from app.providers.responses.dialect import dialect
from tests.providers.responses import ACTION, CHECK, CLICK, EXEC, PATCH, PROGRAM, called, nobody, read

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(
    [
        *("function_call", "custom_tool_call", "apply_patch_call", "shell_call", "local_shell_call", "computer_call"),
        *("tool_search_call", "message", "reasoning", "function_call_output", "local_shell_call_output"),
        *("response.output_item.added", "response.output_item.done", "response.completed", "response.incomplete"),
        *("response.function_call_arguments.delta", "response.custom_tool_call_input.done"),
    ]
)
ITEM = st.fixed_dictionaries(
    {"type": TYPES},
    optional={
        "call_id": ANY_JSON,
        "id": ANY_JSON,
        "name": st.sampled_from(["a", "", None, 3]),
        "arguments": ANY_JSON,
        "input": ANY_JSON,
        "operation": ANY_JSON | st.fixed_dictionaries({"type": st.just("delete_file"), "path": ANY_JSON}),
        "action": ANY_JSON | st.fixed_dictionaries({"commands": ANY_JSON, "command": ANY_JSON, "env": ANY_JSON}),
        "actions": ANY_JSON,
        "status": st.sampled_from(["completed", "incomplete", "in_progress", None, []]),
        "execution": st.sampled_from(["client", "server", 1]),
        "environment": ANY_JSON,
        "pending_safety_checks": ANY_JSON,
        "caller": ANY_JSON,
        "namespace": ANY_JSON,
        "role": st.sampled_from(["assistant", "user", None]),
        "content": ANY_JSON | st.lists(st.fixed_dictionaries({"text": ANY_JSON, "type": ANY_JSON})),
        "output_index": ANY_JSON,
        "item_id": ANY_JSON,
        "delta": ANY_JSON,
    },
)
EVENT = st.fixed_dictionaries(
    {"type": TYPES}, optional={"item": ANY_JSON | ITEM, "output_index": ANY_JSON, "response": ANY_JSON | ITEM}
)
MESSAGE = ANY_JSON | ITEM | st.lists(ITEM | EVENT) | st.fixed_dictionaries({"output": st.lists(ITEM | ANY_JSON)})


def test_a_whole_response_its_items_and_one_item_say_the_same() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "a", "arguments": '{"x":1}', "status": None}
    reasoning = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Now."}]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [reasoning, said, call]}
    expected = (ModelCall(id="c", name="a", arguments={"x": 1}),)

    whole = dialect.read_calls(response, nobody)
    items = read(reasoning, said, call)

    assert whole == ParsedMessage(
        calls=expected, text="Now.", message_id="resp_1", items=(reasoning, said, call), is_response=True
    )
    assert items == replace(whole, message_id=None, is_response=False)
    assert dialect.read_calls(call, nobody) == ParsedMessage(calls=expected, items=(call,))


def test_what_the_model_said_is_read_also_when_it_refused() -> None:
    first = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}] * 2}
    second = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}

    assert read({"role": "user", "content": "?"}, first, second, {"role": "assistant", "content": "B"}).text == (
        "AA\nNo.\nB"
    )


@pytest.mark.parametrize("message", [[], {"output": []}, {"object": "response", "output": None}])
def test_a_message_without_calls_is_no_mistake(message: Any) -> None:
    assert dialect.read_calls(message, nobody).calls == ()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", {}), ("null", {}), (None, {}), ({"a": 1}, {"a": 1}), ('{"a": [1]}', {"a": [1]})],
)
def test_arguments_may_be_missing_or_an_object_already(arguments: Any, expected: dict[str, Any]) -> None:
    assert called({"type": "function_call", "call_id": "c", "name": "a", "arguments": arguments}).arguments == expected


def test_broken_arguments_are_told_with_the_call() -> None:
    call = called({"type": "function_call", "call_id": "c", "name": "a", "arguments": '{"x": '})

    assert (call.id, call.arguments, call.raw_arguments) == ("c", None, '{"x": ')
    assert (call.arguments_error or "").startswith("The arguments are not JSON")


def test_a_free_form_call_has_its_text() -> None:
    call = called({"type": "custom_tool_call", "call_id": "c", "name": "note", "input": "hi\n", "namespace": "box"})

    assert call == ModelCall(id="c", name="note", type="custom", input="hi\n", namespace="box")


@pytest.mark.parametrize(
    ("item", "call"),
    [
        (
            {"type": "apply_patch_call", "status": "in_progress", "operation": PATCH, "caller": PROGRAM},
            ModelCall(id="c", name="apply_patch", type="apply_patch", arguments=PATCH, caller=PROGRAM),
        ),
        (
            {"type": "shell_call", "status": "completed", "action": ACTION, "environment": {"type": "local"}},
            ModelCall(id="c", name="shell", type="shell", arguments=ACTION),
        ),
        (
            {"type": "local_shell_call", "id": "lsh", "status": "completed", "action": EXEC},
            ModelCall(id="c", name="local_shell", type="local_shell", arguments=EXEC),
        ),
        (
            {"type": "computer_call", "status": "completed", "action": CLICK, "pending_safety_checks": []},
            ModelCall(id="c", name="computer", type="computer", arguments={"action": CLICK}),
        ),
        (
            {"type": "computer_call", "action": None, "actions": [CLICK], "pending_safety_checks": [CHECK]},
            ModelCall(
                id="c",
                name="computer",
                type="computer",
                arguments={"actions": [CLICK], "pending_safety_checks": [CHECK]},
            ),
        ),
        (
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "mail"}},
            ModelCall(id="c", name="tool_search", type="tool_search", arguments={"query": "mail"}),
        ),
    ],
)
def test_the_providers_own_tools_are_read_as_what_they_are(item: Wire, call: ModelCall) -> None:
    assert called({"call_id": "c", **item}) == call


def test_what_the_provider_runs_by_itself_is_not_ours(subtests: pytest.Subtests) -> None:
    cases: list[Wire] = [
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "file_search_call", "id": "fs", "queries": [], "results": []},
        {"type": "code_interpreter_call", "id": "ci", "code": "1"},
        {"type": "image_generation_call", "id": "ig", "result": ""},
        {"type": "mcp_call", "id": "mc", "name": "a", "arguments": "{}", "server_label": "s"},
        {"type": "mcp_approval_request", "id": "ma", "name": "a", "arguments": "{}", "server_label": "s"},
        {"type": "tool_search_call", "id": "ts", "execution": "server", "arguments": {}},
        {"type": "shell_call", "call_id": "c", "action": ACTION, "environment": {"type": "container_reference"}},
        {"type": "program", "id": "pg", "call_id": "c", "code": ""},
        {"type": "of_tomorrow", "call_id": "c"},
    ]
    for item in cases:
        with subtests.test(item=item):
            assert read(item).calls == ()


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("function_call", {"type": "function_call_output", "call_id": "c"}),
        ("local_shell_call", {"type": "local_shell_call_output", "id": "c"}),
    ],
)
def test_a_call_that_is_answered_already_is_passed_over(kind: str, output: Wire) -> None:
    call = {"type": kind, "call_id": "c", "name": "a", "action": EXEC}
    other = {"type": "function_call", "call_id": "d", "name": "a"}

    assert [found.id for found in read(call, other, output).calls] == ["d"]


def test_a_call_that_says_nothing_to_do_is_kept_with_what_is_wrong(subtests: pytest.Subtests) -> None:
    cases: list[Wire] = [
        {"type": "apply_patch_call", "operation": {"type": "rename_file", "path": "a"}},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a"}},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a\n*** Delete File: b"}},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": " "}},
        {"type": "apply_patch_call"},
        {"type": "shell_call", "action": {"commands": []}},
        {"type": "shell_call", "action": {"commands": "ls"}},
        {"type": "shell_call", "action": ["ls"]},
        {"type": "local_shell_call", "action": {"command": [1]}},
        {"type": "local_shell_call", "action": {"command": ["ls"], "env": {"-i": "x"}}},
        {"type": "local_shell_call", "action": {"command": ["ls"], "env": {"A": 1}}},
        {"type": "computer_call", "pending_safety_checks": []},
        {"type": "custom_tool_call", "name": "note", "input": {"a": 1}},
    ]
    for item in cases:
        with subtests.test(item=item):
            call = called({"call_id": "c", **item})

            assert (call.id, call.arguments, call.input) == ("c", None, None)
            assert call.arguments_error
            assert call.raw_arguments is not None


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": '{"x": "1'},
        {"type": "custom_tool_call", "call_id": "c", "name": "a", "input": "half"},
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["rm -rf /tmp/x"]}},
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["rm", "-rf"]}},
        {"type": "computer_call", "call_id": "c", "action": CLICK},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}},
    ],
)
def test_a_call_that_was_not_finished_is_not_run(item: Wire) -> None:
    last = dialect.read_calls({"status": "incomplete", "output": [item]}, nobody).calls[0]
    marked = called({**item, "status": "incomplete"})

    for call in (last, marked):
        assert (call.id, call.arguments, call.input) == ("c", None, None)
        assert "ended before" in (call.arguments_error or "")


def test_what_was_whole_before_a_response_was_cut_is_run() -> None:
    first = {"type": "custom_tool_call", "call_id": "c", "name": "note", "input": "whole"}
    second = {"type": "function_call", "call_id": "d", "name": "a", "arguments": "{}", "status": "completed"}

    calls = dialect.read_calls({"status": "incomplete", "output": [first, second]}, nobody).calls

    assert [call.arguments_error for call in calls] == [None, None]


def test_what_is_of_another_dialect_is_refused_in_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        None,
        "text",
        7,
        {},
        [1],
        [{"id": "x"}],
        {"type": "function_call", "call_id": "c"},
        {"choices": [{"message": {"tool_calls": []}}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "a"}}]},
        [{"id": "c", "type": "function", "function": {"name": "a"}}],
        {"type": "message", "role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a"}]},
        [{"type": "tool_use", "id": "t", "name": "a", "input": {}}],
        [{"type": "response.completed"}, 3],
    ]
    for message in cases:
        with subtests.test(message=message):
            with pytest.raises(Unreadable) as caught:
                dialect.read_calls(message, nobody)

            assert str(caught.value).endswith(".")


@given(MESSAGE)
def test_any_json_is_read_or_refused_and_stays_as_it_is(message: Any) -> None:
    before, reading = copy.deepcopy(message), ParsedMessage()
    with suppress(Unreadable):
        reading = dialect.read_calls(message, nobody)

    assert all(call.name for call in reading.calls)
    assert json.dumps([call.view() for call in reading.calls])
    assert message == before


def test_json_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(Unreadable):
        read({"type": "function_call", "call_id": "c", "name": "a", "arguments": deep})
