"""Sampling: `sampling/createMessage` of a server, sent to the operator's LLM gateway as a chat completion."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from app.core.errors import HttpFailed, McpFailed
from app.core.ports import HttpRequest, HttpResponse, SecretUse
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import JsonRpcError
from app.mcp.client.jsonrpc import INVALID_PARAMS
from app.mcp.client.results import excerpt

MAX_SHOWN = 4000
STOP_REASONS = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}
AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
OPTIONS = {"max_tokens": "maxTokens", "temperature": "temperature", "stop": "stopSequences"}

Send = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Gateway(NamedTuple):
    """An OpenAI-compatible API with its model and the name of the secret that holds its key.

    `send` may reach any address, because the operator configured it.
    """

    url: str
    model: str
    send: Send
    secret: str | None = None
    timeout: float = 120.0


async def ask_gateway(gateway: Gateway, params: Raw) -> Raw:
    """The model's answer as a `CreateMessageResult`."""
    response = await gateway.send(
        HttpRequest(
            method="POST",
            url=f"{gateway.url.rstrip('/')}/chat/completions",
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            secrets=(SecretUse(gateway.secret, form="bearer"),) if gateway.secret else (),
            body=dumps(to_chat(params, gateway.model)),
            timeout=gateway.timeout,
        )
    )
    text = response.body.decode("utf-8", "replace")
    if not 200 <= response.status < 300:
        raise HttpFailed(response.status, f"The LLM gateway answered {response.status}: {excerpt(text)}")
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise McpFailed(f"The LLM gateway's answer is not a JSON object: {excerpt(text)}")
    return from_chat(body, gateway.model)


def shown_request(server: str, params: Raw, model: str) -> Raw:
    """What a person sees who is asked whether a server may ask the model."""
    return {
        "server": server,
        "model": model,
        "max_tokens": params.get("maxTokens"),
        "messages": [
            {"role": str(message["role"]), "content": _shown_text(message["content"])}
            for message in to_chat(params, "")["messages"]
        ],
    }


def _shown_text(content: Any) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(part.get("text") or f"[{part['type']}]" for part in parts)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def to_chat(params: Raw, model: str) -> Raw:
    """The request as a chat completion. Raises `JsonRpcError` for what that cannot express."""
    if params.get("tools"):
        raise JsonRpcError(INVALID_PARAMS, "sampling with tools is not supported")
    messages = params.get("messages")
    if not isinstance(messages, list) or not messages:
        raise JsonRpcError(INVALID_PARAMS, "sampling needs messages")
    chat = [_chat_message(message) for message in messages]
    if isinstance(system := params.get("systemPrompt"), str) and system:
        chat.insert(0, {"role": "system", "content": system})
    options = {ours: params[theirs] for ours, theirs in OPTIONS.items() if params.get(theirs) is not None}
    return {"model": model, "messages": chat, **options}


def _chat_message(message: Any) -> Raw:
    match message:
        case {"role": "user" | "assistant" as role, "content": dict(block)}:
            blocks = [block]
        case {"role": "user" | "assistant" as role, "content": list(blocks)}:
            pass
        case _:
            raise JsonRpcError(INVALID_PARAMS, "a sampling message needs the role user or assistant, and content")
    parts = [_chat_part(block) for block in blocks]
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": role, "content": parts[0]["text"] if is_text else parts}


def _chat_part(block: Any) -> Raw:
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
        case {"type": "audio", "data": str(data), "mimeType": str(mime)} if mime in AUDIO_FORMATS:
            return {"type": "input_audio", "input_audio": {"data": data, "format": AUDIO_FORMATS[mime]}}
    kind = block.get("type") if isinstance(block, dict) else block
    raise JsonRpcError(INVALID_PARAMS, f"content of the type {kind!s:.40} is not supported in sampling")


def from_chat(answer: Raw, model: str) -> Raw:
    """A chat completion as a `CreateMessageResult`. Raises `McpFailed` when it has no message."""
    match answer:
        case {"choices": [{"message": {"content": content}, **choice}, *_]}:
            pass
        case _:
            raise McpFailed(f"The LLM gateway's answer has no message: {excerpt(dumps(answer).decode())}")
    reason = choice.get("finish_reason")
    return {
        "role": "assistant",
        "content": {"type": "text", "text": _text_of(content)},
        "model": str(answer.get("model") or model),
        "stopReason": STOP_REASONS.get(str(reason), str(reason or "endTurn")),
    }


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""
