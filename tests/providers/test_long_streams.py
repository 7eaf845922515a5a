"""Streams of very many pieces: no piece is put behind all before it again and again, so a long one is read in time
with its length."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from app.providers.registry import find

PIECES = ('{"text": "', "a", "b", "c", '"}')
Events = list[dict[str, Any]]


class Piece(str):
    """May be joined once, with all others."""

    def __add__(self, other: str) -> NoReturn:
        raise AssertionError("it is copied for what comes behind it")

    def __radd__(self, other: str) -> NoReturn:
        raise AssertionError("all before it is copied")


def chat(pieces: list[str]) -> Events:
    calls = [[{"index": 0, "function": {"arguments": piece}}] for piece in pieces]
    calls[0][0] |= {"id": "call_1", "function": {"name": "a", "arguments": pieces[0]}}
    return [
        {"object": "chat.completion.chunk", "id": "c", "choices": [{"index": 0, "delta": {"tool_calls": one}}]}
        for one in calls
    ]


def responses(pieces: list[str]) -> Events:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "a", "arguments": ""}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": piece}
            for piece in pieces
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": item | {"arguments": "".join(pieces)}},
    ]


def claude(pieces: list[str]) -> Events:
    return [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "a"}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in pieces
        ),
        {"type": "content_block_stop", "index": 0},
    ]


def bedrock(pieces: list[str]) -> Events:
    start = {"toolUse": {"toolUseId": "t", "name": "a"}}
    return [
        {"contentBlockStart": {"contentBlockIndex": 0, "start": start}},
        *({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": one}}}} for one in pieces),
        {"contentBlockStop": {"contentBlockIndex": 0}},
    ]


def vertex(pieces: list[str]) -> Events:
    """Only the text comes in pieces here."""
    last = len(pieces) - 2
    made = [{"jsonPath": "$.text", "stringValue": piece, "willContinue": True} for piece in pieces[1:-1]]
    made[-1]["willContinue"] = False
    return [
        {"candidates": [{"content": {"parts": [{"functionCall": one}]}}]}
        for one in (
            {"name": "a", "partialArgs": [piece], "willContinue": number < last} for number, piece in enumerate(made, 1)
        )
    ]


def interaction(pieces: list[str]) -> Events:
    return [
        {"event_type": "step.start", "index": 0, "step": {"type": "function_call", "id": "f", "name": "a"}},
        *(
            {"event_type": "step.delta", "index": 0, "delta": {"type": "arguments_delta", "arguments": piece}}
            for piece in pieces
        ),
        {"event_type": "step.stop", "index": 0},
    ]


def cohere(pieces: list[str]) -> Events:
    call = {"id": "t", "type": "function", "function": {"name": "a", "arguments": ""}}
    return [
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": call}}},
        *(
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": one}}}}
            for one in ({"arguments": piece} for piece in pieces)
        ),
        {"type": "tool-call-end", "index": 0},
    ]


STREAMS: dict[str, Callable[[list[str]], Events]] = {
    "openai-chat": chat,
    "mistral": chat,
    "openai-responses": responses,
    "anthropic": claude,
    "bedrock": bedrock,
    "gemini": vertex,
    "gemini-interactions": interaction,
    "cohere": cohere,
}


@pytest.mark.parametrize("dialect", STREAMS)
def test_no_piece_is_put_behind_all_before_it(dialect: str) -> None:
    spoken = find(dialect)
    assert spoken is not None

    [call] = spoken.read_calls(STREAMS[dialect]([Piece(piece) for piece in PIECES]), lambda name: None).calls

    assert (call.arguments, call.arguments_error) == ({"text": "abc"}, None)


TEXTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai-chat": lambda one: {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": one}}],
    },
    "bedrock": lambda one: {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": one}}},
    "gemini": lambda one: {"candidates": [{"content": {"parts": [{"text": one}]}}]},
    "ollama": lambda one: {"message": {"role": "assistant", "content": one}, "done": False},
    "text": lambda one: {"choices": [{"index": 0, "delta": {"content": one}}]},
}


@pytest.mark.parametrize("dialect", TEXTS)
def test_neither_is_a_piece_of_text(dialect: str) -> None:
    spoken = find(dialect)
    assert spoken is not None

    reading = spoken.read_calls([TEXTS[dialect](Piece(piece)) for piece in "abc"], lambda name: None)

    assert reading.text == "abc"
