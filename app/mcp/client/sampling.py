"""Samplings: a server wants a model to say something. The operator's gateway is asked, once a person has agreed."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from app.core.errors import CallError, HttpFailed, McpFailed
from app.core.ports import HttpRequest, HttpResponse, PathScope, SecretUse
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.detached_requests import DetachedRequest, DetachedRequests
from app.mcp.client.interfaces import JsonRpcError
from app.mcp.client.results import sentence

SAMPLING = "mcp_sampling"
INVALID_PARAMS = -32602
GRACE = 5.0
MOST_SHOWN = 4000
STOPS = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}
AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


Send = Callable[[HttpRequest], Awaitable[HttpResponse]]


class Gateway(NamedTuple):
    """An OpenAI-compatible API: where it is, which model is asked, and the name of the secret that lets us in.

    `send` goes wherever the operator has it, also where no tool may.
    """

    url: str
    model: str
    send: Send
    secret: str | None = None
    timeout: float = 120.0


def make(gateway: Gateway, visits: DetachedRequests) -> Tool:
    """The hidden tool that asks the gateway."""

    def needs(args: DetachedRequest, scope: PathScope) -> list[Need]:
        return [Need("mcp", f"{args.server}/sampling:{gateway.model}")]

    async def run(args: DetachedRequest, ctx: Context) -> Result:
        visits.admit(args)
        answer = await gateway.send(_request(gateway, to_chat(args.params, gateway.model)))
        said = from_chat(_body(answer), gateway.model)
        title = f"{said['model']} for {args.server}"
        return Result(said["content"]["text"], title, {"stop_reason": said["stopReason"]}, structured=said)

    return typed(
        DetachedRequest,
        name=SAMPLING,
        description="Has a model answer what an MCP server asks it.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        timeout=gateway.timeout + GRACE,
        permission="mcp",
        is_listed=False,
        explains=lambda args: shown(args, gateway),
    )


def shown(visit: DetachedRequest, gateway: Gateway) -> Raw:
    """What a person gets to see who is asked whether a server may ask the model."""
    texts = [(str(message["role"]), _seen(message["content"])) for message in to_chat(visit.params, "")["messages"]]
    return {
        "server": visit.server,
        "model": gateway.model,
        "max_tokens": visit.params.get("maxTokens"),
        "messages": [{"role": role, "content": text} for role, text in texts],
    }


def _seen(content: Any) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said = "\n".join(part.get("text") or f"[{part['type']}]" for part in parts)
    return said if len(said) <= MOST_SHOWN else said[:MOST_SHOWN] + "…"


def to_chat(params: Raw, model: str) -> Raw:
    """The request as chat completions take it. Raises `JsonRpcError` for what they do not."""
    if params.get("tools"):
        raise JsonRpcError(INVALID_PARAMS, "sampling with tools is not offered here")
    given = params.get("messages")
    if not isinstance(given, list) or not given:
        raise JsonRpcError(INVALID_PARAMS, "sampling takes messages")
    messages = [_message(one) for one in given]
    if isinstance(system := params.get("systemPrompt"), str) and system:
        messages.insert(0, {"role": "system", "content": system})
    named = {"max_tokens": "maxTokens", "temperature": "temperature", "stop": "stopSequences"}
    more = {ours: params[theirs] for ours, theirs in named.items() if params.get(theirs) is not None}
    return {"model": model, "messages": messages, **more}


def _message(given: Any) -> Raw:
    match given:
        case {"role": "user" | "assistant" as role, "content": dict(block)}:
            blocks = [block]
        case {"role": "user" | "assistant" as role, "content": list(blocks)}:
            pass
        case _:
            raise JsonRpcError(INVALID_PARAMS, "a message of a sampling has a role, user or assistant, and content")
    parts = [_part(block) for block in blocks]
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": role, "content": parts[0]["text"] if is_text else parts}


def _part(block: Any) -> Raw:
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
        case {"type": "audio", "data": str(data), "mimeType": str(mime)} if mime in AUDIO:
            return {"type": "input_audio", "input_audio": {"data": data, "format": AUDIO[mime]}}
    kind = block.get("type") if isinstance(block, dict) else block
    raise JsonRpcError(INVALID_PARAMS, f"content of the kind {kind!s:.40} cannot be put to the model here")


def from_chat(answer: Raw, model: str) -> Raw:
    """What the model said, as servers take it. Raises `McpFailed` when that is not to be found."""
    match answer:
        case {"choices": [{"message": {"content": content}, **choice}, *_]}:
            pass
        case _:
            raise McpFailed(f"The LLM gateway's answer has no message in it: {sentence(dumps(answer).decode())}")
    reason = choice.get("finish_reason")
    return {
        "role": "assistant",
        "content": {"type": "text", "text": _text(content)},
        "model": str(answer.get("model") or model),
        "stopReason": STOPS.get(str(reason), str(reason or "endTurn")),
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _request(gateway: Gateway, body: Raw) -> HttpRequest:
    return HttpRequest(
        method="POST",
        url=f"{gateway.url.rstrip('/')}/chat/completions",
        headers={"Content-Type": "application/json", "Accept": "application/json"},
        secrets=(SecretUse(gateway.secret, form="bearer"),) if gateway.secret else (),
        body=dumps(body),
        timeout=gateway.timeout,
    )


def _body(answer: HttpResponse) -> Raw:
    text = answer.body.decode("utf-8", "replace")
    if not 200 <= answer.status < 300:
        raise HttpFailed(answer.status, f"The LLM gateway answered {answer.status}: {sentence(text)}")
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _unreadable(text)
    return body


def _unreadable(text: str) -> CallError:
    return McpFailed(f"The LLM gateway's answer is no JSON object: {sentence(text)}")
