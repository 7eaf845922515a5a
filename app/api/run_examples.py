"""Examples of runs and dialects for the OpenAPI document."""

from typing import Any

from app.api.examples import CALL, RESULT

MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_b7Kq2",
            "type": "function",
            "function": {"name": "read_file", "arguments": '{"file_path": "hello.txt"}'},
        }
    ],
}
RUN: dict[str, Any] = {
    "id": "run_06605af1f1f7394295dc6875",
    "dialect": "openai-chat",
    "append": [{"role": "tool", "tool_call_id": "call_b7Kq2", "content": RESULT["output"]}],
    "calls": [CALL | {"call_id": "call_b7Kq2", "message_id": "chatcmpl-9"}],
    "pending": [],
    "blocked": False,
}
MODEL_CALL: dict[str, Any] = {
    "id": "call_b7Kq2",
    "type": "function",
    "name": "read_file",
    "arguments": {"file_path": "hello.txt"},
}
PARSED: dict[str, Any] = {"dialect": "openai-chat", "calls": [MODEL_CALL], "remaining_text": ""}
DIALECT: dict[str, Any] = {
    "name": "deepseek",
    "title": "DeepSeek",
    "alias_of": "openai-chat",
    "native_tools": True,
    "strict": False,
    "images": False,
    "files": False,
    "parallel": True,
    "freeform": False,
    "builtins": [],
    "streams": True,
    "note": None,
}
