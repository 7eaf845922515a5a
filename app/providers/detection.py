"""Detects the dialect of a message by fields that only that dialect has."""

from typing import Any

_ITEMS = ("function_call", "custom_tool_call", "apply_patch_call", "shell_call", "local_shell_call", "computer_call")
_BLOCKS = ("tool_use", "server_tool_use", "thinking", "redacted_thinking")


def detect(message: Any) -> str | None:
    """The name of the dialect; None when unknown. A message without calls may be valid in several."""
    match message:
        case str() | {"text": str()}:
            return "text"
        case _ if _is_interaction(message):
            return "gemini-interactions"
        case dict():
            return _of_object(message)
        case [first, *_]:
            return _of_list(message, first)
        case _:
            return None


def _of_object(message: dict[str, Any]) -> str | None:
    if "jsonrpc" in message or message.get("method") == "tools/call":
        return "mcp"
    if isinstance(message.get("output"), list) or _is_item(message):
        return "openai-responses"
    if "candidates" in message or isinstance(message.get("parts"), list):
        return "gemini"
    if isinstance(output := message.get("output"), dict) and "message" in output:
        return "bedrock"
    if "choices" in message:
        return "openai-chat"
    if "tool_plan" in message:
        return "cohere"
    if isinstance(content := message.get("content"), list) and content:
        return _of_blocks(content) or _of_calls(message)
    if isinstance(inner := message.get("message"), dict):
        return _of_object(inner)
    return _of_calls(message)


def _of_calls(message: dict[str, Any]) -> str | None:
    """Ollama has objects as arguments and no ids; a message without calls is read as the most common dialect."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls and all(_is_ollama(call) for call in calls):
        return "ollama"
    if calls is not None or "function_call" in message:
        return "openai-chat"
    if message.get("type") == "message" or "stop_reason" in message:
        return "anthropic"
    return "openai-chat" if message.get("role") == "assistant" else None


def _is_ollama(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and "id" not in call
        and isinstance(function := call.get("function"), dict)
        and isinstance(function.get("arguments"), dict)
    )


def _of_blocks(blocks: list[Any]) -> str | None:
    objects = [block for block in blocks if isinstance(block, dict)]
    if any("toolUse" in block for block in objects):
        return "bedrock"
    if any(block.get("type") in _BLOCKS for block in objects):
        return "anthropic"
    return None


def _of_list(message: list[Any], first: Any) -> str | None:
    """Chunks of a stream, or the bare calls."""
    if isinstance(first, str):
        return "text"
    if not isinstance(first, dict):
        return None
    if str(first.get("type", "")).startswith("response.") or any(_is_item(item) for item in message):
        return "openai-responses"
    if first.get("type") == "message_start":
        return "anthropic"
    if "candidates" in first or "functionCall" in first or "function_call" in first:
        return "gemini"
    if first.get("object") == "chat.completion.chunk" or "choices" in first:
        return "openai-chat"
    if any(name in first for name in ("messageStart", "contentBlockStart")):
        return "bedrock"
    if "jsonrpc" in first:
        return "mcp"
    if "function" in first or "custom" in first:
        return _of_calls({"tool_calls": message})
    return _of_blocks(message)


def _is_interaction(message: Any) -> bool:
    """Gemini's calls have the type of OpenAI's items, but no `call_id`, and an object as arguments."""
    match message:
        case {"steps": list()} | {"type": "model_output"} | [{"event_type": str()}, *_]:
            return True
        case {"type": "function_call", "arguments": dict()}:
            return "call_id" not in message
        case list():
            return any(_is_interaction(item) for item in message if isinstance(item, dict))
    return False


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in _ITEMS
