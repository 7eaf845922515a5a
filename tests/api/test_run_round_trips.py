"""A model's message there and back through a running service, in every native dialect.

Two reads, a write, a tool that does not exist and a call with broken arguments: each gets its answer, in order, in a
form that the provider's own package takes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import httpx
import pytest
from anthropic.types import MessageParam
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from cohere.types import ToolChatMessageV2
from google.genai.interactions import FunctionResultStepParam
from google.genai.types import Content
from mcp.types import CallToolResult
from mistralai.client.models import ToolMessage
from ollama import Message
from openai.types.chat import ChatCompletionToolMessageParam
from openai.types.responses import ResponseInputItemParam

from app.core.tools import Tool
from app.tools import BUILTINS
from tests.providers.typed_dicts import require
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

CALLS: list[tuple[str, str, Any]] = [
    ("Ka", "read_file", {"file_path": "hello.txt"}),
    ("Kb", "write_file", {"file_path": "made.txt", "content": "made\n"}),
    ("Kc", "no_such_tool", {"x": 1}),
    ("Kd", "read_file", '{"file_path": "hel'),
    ("Ke", "read_file", {"file_path": "made.txt"}),
]
"""What the model wants. A text is what it wrote where arguments should be."""
CODES = [None, None, "UnknownTool", "InvalidArgs", None]


class Everything(Toys):
    @property
    def tools(self) -> tuple[Tool, ...]:
        return BUILTINS


@pytest.fixture
def toys() -> Toys:
    return Everything()


@dataclass(frozen=True)
class Trip:
    """A dialect: the message that has these calls, what its package says of the answer, and the texts in it."""

    message: Callable[[list[tuple[str, str, Any]]], Any]
    check: Callable[[list[dict[str, Any]]], object]
    texts: Callable[[list[dict[str, Any]]], list[str]]


def as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def chat_calls(calls: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{id}", "type": "function", "function": {"name": name, "arguments": as_text(arguments)}}
        for id, name, arguments in calls
    ]


def chat(calls: list[tuple[str, str, Any]]) -> Any:
    return {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": chat_calls(calls)}}]}


def responses(calls: list[tuple[str, str, Any]]) -> Any:
    items = [
        {"type": "function_call", "call_id": f"call_{id}", "name": name, "arguments": as_text(arguments)}
        for id, name, arguments in calls
    ]
    return {"id": "resp_1", "object": "response", "status": "completed", "output": items}


def claude(calls: list[tuple[str, str, Any]]) -> Any:
    """As a stream: only there arguments can be broken."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "msg_1", "role": "assistant"}}]
    for number, (id, name, arguments) in enumerate(calls):
        block = {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": as_text(arguments)}
        events.append({"type": "content_block_start", "index": number, "content_block": block})
        events.append({"type": "content_block_delta", "index": number, "delta": delta})
        events.append({"type": "content_block_stop", "index": number})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]


def gemini(calls: list[tuple[str, str, Any]]) -> Any:
    parts = [{"functionCall": {"id": f"fc-{id}", "name": name, "args": arguments}} for id, name, arguments in calls]
    return {"candidates": [{"content": {"role": "model", "parts": parts}}]}


def interaction(calls: list[tuple[str, str, Any]]) -> Any:
    """As a stream: only there arguments can be broken."""
    events: list[dict[str, Any]] = [{"event_type": "interaction.created", "interaction": {"id": "int_1"}}]
    for number, (id, name, arguments) in enumerate(calls):
        step = {"type": "function_call", "id": f"fc_{id}", "name": name, "arguments": {}}
        delta = {"type": "arguments_delta", "arguments": as_text(arguments)}
        events.append({"event_type": "step.start", "index": number, "step": step})
        events.append({"event_type": "step.delta", "index": number, "delta": delta})
        events.append({"event_type": "step.stop", "index": number})
    return [*events, {"event_type": "interaction.completed", "interaction": {"id": "int_1"}}]


def bedrock(calls: list[tuple[str, str, Any]]) -> Any:
    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    for number, (id, name, arguments) in enumerate(calls):
        start = {"toolUse": {"toolUseId": f"tooluse_{id}", "name": name}}
        events.append({"contentBlockStart": {"contentBlockIndex": number, "start": start}})
        delta = {"toolUse": {"input": as_text(arguments)}}
        events.append({"contentBlockDelta": {"contentBlockIndex": number, "delta": delta}})
        events.append({"contentBlockStop": {"contentBlockIndex": number}})
    return [*events, {"messageStop": {"stopReason": "tool_use"}}]


def ollama(calls: list[tuple[str, str, Any]]) -> Any:
    wanted = [{"function": {"name": name, "arguments": arguments}} for _, name, arguments in calls]
    return {"model": "m", "message": {"role": "assistant", "content": "", "tool_calls": wanted}, "done": True}


def cohere(calls: list[tuple[str, str, Any]]) -> Any:
    return {"id": "c", "message": {"role": "assistant", "tool_plan": "Look.", "tool_calls": chat_calls(calls)}}


def mcp(calls: list[tuple[str, str, Any]]) -> Any:
    return [
        {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for id, name, arguments in calls
    ]


def check_converse(append: list[dict[str, Any]]) -> None:
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    report = ParamValidator().validate(append[0], model.shape_for("Message"))
    assert not report.has_errors(), report.generate_report()


def each(check: Callable[[dict[str, Any]], object]) -> Callable[[list[dict[str, Any]]], None]:
    def check_all(append: list[dict[str, Any]]) -> None:
        for one in append:
            check(one)

    return check_all


def contents(append: list[dict[str, Any]]) -> list[str]:
    return [one["content"] for one in append]


TRIPS = {
    "openai-chat": Trip(chat, each(lambda one: require(ChatCompletionToolMessageParam, one)), contents),
    "openai-responses": Trip(
        responses,
        each(lambda one: require(ResponseInputItemParam, one)),
        lambda append: [one["output"] for one in append],
    ),
    "anthropic": Trip(
        claude,
        each(lambda one: require(MessageParam, one)),
        lambda append: [block["content"] for block in append[0]["content"]],
    ),
    "gemini": Trip(
        gemini,
        each(Content.model_validate),
        lambda append: [
            response.get("error") or response["output"]
            for response in (part["functionResponse"]["response"] for part in append[0]["parts"])
        ],
    ),
    "gemini-interactions": Trip(
        interaction,
        each(lambda one: require(FunctionResultStepParam, one)),
        lambda append: [one["result"] for one in append],
    ),
    "bedrock": Trip(
        bedrock,
        check_converse,
        lambda append: [
            "".join(part["text"] for part in block["toolResult"]["content"]) for block in append[0]["content"]
        ],
    ),
    "mistral": Trip(chat, each(ToolMessage.model_validate), contents),
    "ollama": Trip(ollama, each(Message.model_validate), contents),
    "cohere": Trip(cohere, each(ToolChatMessageV2.model_validate), contents),
    "mcp": Trip(
        mcp,
        each(lambda one: CallToolResult.model_validate(one["result"])),
        lambda append: ["\n".join(part["text"] for part in one["result"]["content"]) for one in append],
    ),
}
PREFIXED = set(TRIPS) - {"mcp"}
"""Dialects in which an error is told with its code in brackets."""


@pytest.mark.parametrize("dialect", TRIPS)
async def test_a_message_goes_there_and_back(service: RunningService, client: httpx.AsyncClient, dialect: str) -> None:
    trip = TRIPS[dialect]

    answer = await client.post(f"/v1/run/{dialect}", json=trip.message(CALLS))
    again = await client.get(f"/v1/run/{answer.json()['id']}")

    run = answer.json()
    assert answer.status_code == 200, answer.text
    assert [call["error"] and call["error"]["code"] for call in run["calls"]] == CODES
    trip.check(run["append"])
    texts = trip.texts(run["append"])
    assert len(texts) == len(CALLS)
    assert "Hello from your Toolcrib workspace." in texts[0]
    for text, code in zip(texts, CODES, strict=True):
        marked = f"[ERROR:{code}]" if dialect in PREFIXED else f"{code}:"
        assert code is None or marked in text, text
    assert "made" in texts[4]
    assert workspace(service).joinpath("made.txt").read_text() == "made\n"
    assert again.json() == run


@pytest.mark.parametrize("dialect", sorted(set(TRIPS) - {"mistral"}))
async def test_the_dialect_of_a_message_is_told_by_the_message(client: httpx.AsyncClient, dialect: str) -> None:
    parsed = await client.post("/v1/parse/auto", json=TRIPS[dialect].message(CALLS[:3]))

    assert parsed.json()["dialect"] == dialect
    assert [call["name"] for call in parsed.json()["calls"]] == ["read_file", "write_file", "no_such_tool"]


async def test_a_response_keeps_its_id_usable_and_can_be_replayed_whole(client: httpx.AsyncClient) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    response = responses(CALLS[:1])
    response["output"].insert(0, reasoning)

    plain = (await client.post("/v1/run/openai-responses", json=response)).json()
    full = (await client.post("/v1/run/openai-responses", params={"replay": "full"}, json=response)).json()

    assert plain["previous_response_id"] == "resp_1"
    assert [item["type"] for item in plain["append"]] == ["function_call_output"]
    assert full["append"] == [*response["output"], *plain["append"]]


async def test_the_providers_own_tools_are_run_by_ours(service: RunningService, client: httpx.AsyncClient) -> None:
    create = {"type": "create_file", "path": "a.txt", "diff": "+one\n+two\n"}
    update = {"type": "update_file", "path": "a.txt", "diff": "@@\n-two\n+three\n"}
    missing = {"type": "delete_file", "path": "b.txt"}
    action = {"commands": ["cat a.txt", "echo oops >&2; exit 3", "sleep 30"], "timeout_ms": 2000}
    local = {"type": "exec", "command": ["cat", "a.txt"], "env": {"A": "b"}}
    items = [
        {"type": "apply_patch_call", "call_id": "call_Kc", "status": "completed", "operation": create},
        {"type": "apply_patch_call", "call_id": "call_Ku", "status": "completed", "operation": update},
        {"type": "apply_patch_call", "call_id": "call_Kd", "status": "completed", "operation": missing},
        {"type": "shell_call", "call_id": "call_Ks", "action": action | {"max_output_length": 1000}},
        {"type": "local_shell_call", "call_id": "call_Kl", "id": "lsh_1", "action": local},
        {"type": "computer_call", "call_id": "call_Kp", "id": "cu_1", "action": {"type": "screenshot"}},
    ]

    run = (await client.post("/v1/run/openai-responses", json={"id": "resp_2", "output": items})).json()

    for item in run["append"]:
        require(ResponseInputItemParam, item)
    created, updated, deleted, shell, local_output, computer, said = run["append"]
    assert [created["status"], updated["status"], deleted["status"]] == ["completed", "completed", "failed"]
    assert workspace(service).joinpath("a.txt").read_text() == "one\nthree\n"
    assert [one["outcome"] for one in shell["output"]] == [
        {"type": "exit", "exit_code": 0},
        {"type": "exit", "exit_code": 3},
        {"type": "timeout"},
    ]
    assert (shell["output"][0]["stdout"], shell["output"][1]["stderr"]) == ("one\nthree\n", "oops\n")
    assert shell["max_output_length"] == 1000
    assert json.loads(local_output["output"]) == {"stdout": "one\nthree\n", "stderr": "", "exit_code": 0}
    assert computer["type"] == "computer_call_output"
    assert "no computer tool" in said["content"][0]["text"]


async def test_claudes_own_tools_are_run_by_ours(service: RunningService, client: httpx.AsyncClient) -> None:
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("str_replace_based_edit_tool", {"command": "create", "path": "n.txt", "file_text": "a\nb\n"}),
        ("str_replace_based_edit_tool", {"command": "str_replace", "path": "n.txt", "old_str": "b", "new_str": "c"}),
        ("str_replace_based_edit_tool", {"command": "insert", "path": "n.txt", "insert_line": 1, "insert_text": "x\n"}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "n.txt", "view_range": [1, -1]}),
        ("bash", {"command": "cat n.txt"}),
        ("bash", {"restart": True}),
    ]
    blocks = [
        {"type": "tool_use", "id": f"toolu_K{number}x", "name": name, "input": given}
        for number, (name, given) in enumerate(wanted)
    ]

    run = (await client.post("/v1/run/anthropic", json={"role": "assistant", "content": blocks})).json()

    assert [call["error"] for call in run["calls"]] == [None] * len(wanted)
    assert workspace(service).joinpath("n.txt").read_text() == "a\nx\nc\n"
    results = run["append"][0]["content"]
    assert "a\nx\nc" in results[4]["content"]
    assert "new shell" in results[5]["content"]


def workspace(service: RunningService) -> Path:
    return service.data_dir / "workspace"
