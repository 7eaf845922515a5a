"""Server requests that belong to no call: each becomes a call of a hidden tool, so that rules apply and it is recorded.

The hidden tools: `mcp_elicitation` asks a person, `mcp_sampling` asks the LLM gateway.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from app.core.asks import Answer
from app.core.errors import ToolUnavailable
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.core.util.json_codec import Raw, dumps
from app.mcp.client.interfaces import JsonRpcError
from app.mcp.client.jsonrpc import INVALID_PARAMS
from app.mcp.client.sampling import Gateway, ask_gateway, shown_request

ELICITATION = "mcp_elicitation"
SAMPLING = "mcp_sampling"
MAX_OPEN = 64
MAX_ELICITATION_BYTES = 64 * 1024
MAX_WAIT_SECONDS = 604_800.0
SAMPLING_GRACE_SECONDS = 5.0


class TooManyDetachedRequests(Exception):
    """The limit of open requests is reached."""


class DetachedRequest(BaseModel, extra="forbid"):
    """The arguments of a hidden tool. Only the service knows a valid `request_id`."""

    request_id: str
    server: str
    params: dict[str, Any]


class DetachedRequests:
    """The open requests, and the ids that may be used once."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._open = 0

    @contextmanager
    def open(self, server: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The arguments for one call of a hidden tool. Raises `TooManyDetachedRequests`."""
        if self._open >= MAX_OPEN:
            raise TooManyDetachedRequests
        id = secrets.token_urlsafe(24)
        self._ids.add(id)
        self._open += 1
        try:
            yield {"request_id": id, "server": server, "params": params}
        finally:
            self._open -= 1
            self._ids.discard(id)

    def claim(self, request: DetachedRequest) -> None:
        """Use up the request's id. Raises `ToolUnavailable` for an unknown one, also after a restart."""
        if request.request_id not in self._ids:
            raise ToolUnavailable("Only the service calls this tool, for a request of an MCP server.")
        self._ids.discard(request.request_id)


def elicitation_tool(requests: DetachedRequests) -> Tool:
    """The hidden tool that asks a person."""

    def needs(args: DetachedRequest, scope: PathScope) -> list[Need]:
        return [Need("mcp", f"{args.server}/elicitation:{args.params['mode']}")]

    async def run(args: DetachedRequest, ctx: Context) -> Result:
        requests.claim(args)
        answer = elicitation_result(await ctx.elicit(args.params), args.params)
        return Result(answer["action"], f"{args.server} asks", structured=answer)

    return typed(
        DetachedRequest,
        name=ELICITATION,
        description="Asks a person a question of an MCP server.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        timeout=MAX_WAIT_SECONDS,
        permission="mcp",
        is_listed=False,
    )


def sampling_tool(gateway: Gateway, requests: DetachedRequests) -> Tool:
    """The hidden tool that asks the LLM gateway."""

    def needs(args: DetachedRequest, scope: PathScope) -> list[Need]:
        return [Need("mcp", f"{args.server}/sampling:{gateway.model}")]

    async def run(args: DetachedRequest, ctx: Context) -> Result:
        requests.claim(args)
        answer = await ask_gateway(gateway, args.params)
        title = f"{answer['model']} for {args.server}"
        return Result(answer["content"]["text"], title, {"stop_reason": answer["stopReason"]}, structured=answer)

    return typed(
        DetachedRequest,
        name=SAMPLING,
        description="Has a model answer a sampling request of an MCP server.",
        effect=Effect.READ,
        needs=needs,
        run=run,
        lane=Lane.NONE,
        timeout=gateway.timeout + SAMPLING_GRACE_SECONDS,
        permission="mcp",
        is_listed=False,
        explains=lambda args: shown_request(args.server, args.params, gateway.model),
    )


def shown_elicitation(server: str, params: Raw) -> Raw:
    """What a person sees of an elicitation. Raises `JsonRpcError` for an invalid one."""
    shown = {"server": server, "mode": params.get("mode", "form"), "message": str(params.get("message", ""))}
    match params:
        case {"mode": "url", "url": str(url)}:
            _require_web_url(url)
            shown |= {"url": url, "elicitation_id": params.get("elicitationId")}
        case {"requestedSchema": dict(schema)} if shown["mode"] == "form":
            shown["requested_schema"] = schema
        case _:
            raise JsonRpcError(INVALID_PARAMS, "an elicitation needs a requestedSchema, or the mode url and a url")
    if len(dumps(shown)) > MAX_ELICITATION_BYTES:
        raise JsonRpcError(INVALID_PARAMS, f"an elicitation has at most {MAX_ELICITATION_BYTES // 1024} KiB")
    return shown


def elicitation_result(answer: Answer, shown: Raw) -> Raw:
    """The person's answer as an `ElicitResult`."""
    if answer.action is not None or answer.content is None:
        return {"action": answer.action or "cancel"}
    return {"action": "accept"} if shown["mode"] == "url" else {"action": "accept", "content": answer.content}


def _require_web_url(url: str) -> None:
    """The person opens it in a browser."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise JsonRpcError(INVALID_PARAMS, "the url of an elicitation must be an http or https URL")
