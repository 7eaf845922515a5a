"""What a model said, out of whatever it came in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.runs import Unreadable
from app.providers.text_calls.message_text import MessageText, message_text

MESSAGE = {"role": "assistant", "content": "Hello."}
STREAM = [
    {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": "Hel"}}]},
    {"id": "c1", "choices": [{"index": 1, "delta": {"content": "Or so."}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": "lo."}, "finish_reason": None}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": None}, "finish_reason": "stop"}]},
    {"id": "c1", "choices": [], "usage": {}},
]
EVENTS = [
    {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "H"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ello."}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "message_stop"},
]
FORMS: dict[str, tuple[Any, MessageText]] = {
    "a string": ("Hello.", MessageText("Hello.")),
    "a text": ({"text": "Hello."}, MessageText("Hello.")),
    "OpenAI's message": (MESSAGE, MessageText("Hello.")),
    "OpenAI's message in parts": (
        {"role": "assistant", "content": [{"type": "text", "text": "Hel"}, {"type": "refusal", "refusal": "x"}, "lo."]},
        MessageText("Hello."),
    ),
    "OpenAI's message without a text": ({"role": "assistant", "content": None, "tool_calls": []}, MessageText("")),
    "a message without any content": ({"role": "assistant", "tool_calls": []}, MessageText("")),
    "OpenAI's response": (
        {"id": "r1", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]},
        MessageText("Hello.", "r1", is_response=True),
    ),
    "the first choice that has a text": (
        {"choices": [{"message": {"content": None}}, {"message": MESSAGE}, {"message": {"content": "Or so."}}]},
        MessageText("Hello.", is_response=True),
    ),
    "a completion": ({"id": "r1", "choices": [{"text": "Hello."}]}, MessageText("Hello.", "r1", is_response=True)),
    "Anthropic's message": (
        {
            **{"id": "m1", "type": "message", "role": "assistant"},
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "Hel"},
                {"type": "text", "text": "lo."},
                {"type": "tool_use", "id": "t1", "name": "x", "input": {}},
            ],
        },
        MessageText("Hello.", "m1", is_response=True),
    ),
    "Ollama's chat": ({"model": "m", "message": MESSAGE, "done": True}, MessageText("Hello.", is_response=True)),
    "Ollama's generate": ({"model": "m", "response": "Hello.", "done": True}, MessageText("Hello.", is_response=True)),
    "texts in a row": (["Hel", "", "lo."], MessageText("Hello.")),
    "no chunks": ([], MessageText("")),
    "OpenAI's stream": (STREAM, MessageText("Hello.", "c1")),
    "Anthropic's stream": (EVENTS, MessageText("Hello.", "m1")),
    "Ollama's stream": (
        [
            {"message": {"role": "assistant", "content": "Hel"}, "done": False},
            {"message": {"content": "lo."}, "done": True},
        ],
        MessageText("Hello."),
    ),
    "Ollama's other stream": (
        [{"response": "Hello", "done": False}, {"response": ".", "done": True}],
        MessageText("Hello."),
    ),
    "bare parts": ([{"type": "text", "text": "Hello."}, {"type": "image"}], MessageText("Hello.")),
}
STRANGE: dict[str, Any] = {
    "nothing": None,
    "a number": 5,
    "an empty object": {},
    "what a user said": {"role": "user", "content": "Hello."},
    "what a tool said": {"role": "tool", "content": "Hello.", "tool_call_id": "c1"},
    "a user's text": {"role": "user", "text": "Hello."},
    "a whole conversation": [{"role": "user", "content": "Hello."}, MESSAGE],
    "a response for a user": {"choices": [{"message": {"role": "user", "content": "Hello."}}]},
    "content of no kind": {"role": "assistant", "content": 5},
    "a part of no kind": {"role": "assistant", "content": [5]},
    "a choice of no kind": {"choices": [5]},
    "a text of no kind": {"choices": [{"text": 5}]},
    "chunks of no kind": ["a", 5],
}


def test_the_text_is_found_in_every_form(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, MessageText]] = list(FORMS.values())
    for message, said in cases:
        with subtests.test(message=message, said=said):
            assert message_text(message) == said


def test_anything_else_is_refused_in_a_sentence(subtests: pytest.Subtests) -> None:
    cases: list[Any] = list(STRANGE.values())
    for message in cases:
        with subtests.test(message=message), pytest.raises(Unreadable, match=r"\.$"):
            message_text(message)


keys = st.sampled_from(
    ["text", "role", "content", "choices", "message", "delta", "response", "done", "type", "id", "content_block"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["assistant", "text", "text_delta"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=4),
)


@given(anything)
def test_any_json_is_said_or_refused(message: Any) -> None:
    try:
        said = message_text(message)
    except Unreadable:
        return
    assert isinstance(said.text, str)
