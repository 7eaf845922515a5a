"""Dialects are told apart by what only one of them has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.detection import detect
from app.providers.registry import DIALECTS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)


def test_a_message_is_known_by_its_form(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str | None]] = [
        ("hello", "text"),
        ({"text": "hello"}, "text"),
        (["hel", "lo"], "text"),
        ({"role": "assistant", "content": "hi"}, "openai-chat"),
        ({"role": "assistant", "function_call": {"name": "x", "arguments": "{}"}}, "openai-chat"),
        ([{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}], "openai-chat"),
        ([{"object": "chat.completion.chunk", "choices": []}], "openai-chat"),
        ({"output": []}, "openai-responses"),
        ([{"type": "shell_call", "call_id": "c"}], "openai-responses"),
        ([{"type": "response.created"}], "openai-responses"),
        ({"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}]}, "anthropic"),
        ([{"type": "tool_use", "id": "t", "name": "x", "input": {}}], "anthropic"),
        ([{"type": "message_start"}], "anthropic"),
        ({"parts": [{"functionCall": {"name": "x"}}]}, "gemini"),
        ([{"candidates": []}], "gemini"),
        ({"id": "i", "status": "requires_action", "steps": []}, "gemini-interactions"),
        (
            [{"type": "thought"}, {"type": "function_call", "id": "a", "name": "x", "arguments": {}}],
            "gemini-interactions",
        ),
        ({"type": "model_output", "content": []}, "gemini-interactions"),
        ([{"event_type": "interaction.created", "interaction": {}}], "gemini-interactions"),
        ([{"type": "function_call", "call_id": "a", "name": "x", "arguments": {}}], "openai-responses"),
        ({"output": {"message": {"content": []}}}, "bedrock"),
        ({"role": "assistant", "content": [{"toolUse": {"name": "x"}}]}, "bedrock"),
        ([{"messageStart": {}}], "bedrock"),
        ({"message": {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": {}}}]}}, "ollama"),
        ({"role": "assistant", "tool_plan": "x"}, "cohere"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, "mcp"),
        ({"hello": 1}, None),
        ([], None),
        (None, None),
        (7, None),
    ]
    for message, dialect in cases:
        with subtests.test(message=message, dialect=dialect):
            assert detect(message) == dialect


@given(VALUES)
def test_whatever_comes_is_a_dialect_or_none(message: Any) -> None:
    assert detect(message) in {None, *DIALECTS}
