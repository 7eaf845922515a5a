"""Requests that a server answers only after it got more input from a person or the client.

Two forms: an `input_required` result, which is answered with the next request (2026-07-28), and the error -32042, which
sends a person to a URL before the request is sent again (2025-11-25).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from app.core.errors import McpFailed
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import JsonRpcError, ServerRequestHandler

MAX_ROUNDS = 10
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0

URL_ELICITATION_REQUIRED = -32042
URL_WAIT_SECONDS = 10.0
"""Not every server reports that the person is done: after this long the request is sent again."""
MAX_URL_RETRIES = 12
MAX_URLS = 8

Send = Callable[[Raw], Awaitable[Raw]]
"""Sends the request with these parameters added."""


class InputRequest(NamedTuple):
    """One of a server's `inputRequests`: its key, and how many there are."""

    key: str
    total: int


current_question: ContextVar[InputRequest | None] = ContextVar("current_question", default=None)
"""The input request that is being answered, for a back channel that passes it on under the same key."""


class UrlElicitations:
    """The URL elicitations that people work on, by the server's ids."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}

    def complete(self, id: str) -> None:
        """The server reports that the person is done."""
        if (event := self._open.get(id)) is not None:
            event.set()

    @contextmanager
    def track(self, elicitations: list[Raw]) -> Iterator[list[asyncio.Event]]:
        """An event for each of these, set when it is complete."""
        ids = [elicitation["elicitationId"] for elicitation in elicitations]
        try:
            yield [self._open.setdefault(id, asyncio.Event()) for id in ids]
        finally:
            for id in ids:
                self._open.pop(id, None)


async def send_with_elicitations(send: Send, handler: ServerRequestHandler, ctx: Context, urls: UrlElicitations) -> Raw:
    """Send a request and return its final result, if need be after a person visited a URL."""
    try:
        return await send_with_input(send, handler, ctx)
    except JsonRpcError as error:
        if not (elicitations := _required_urls(error)):
            raise
        refusal = error
    with urls.track(elicitations) as completed:
        for elicitation in elicitations:
            answer = await handler.on_request("elicitation/create", elicitation | {"mode": "url"}, ctx)
            if answer.get("action") != "accept":
                raise refusal
        for _ in range(MAX_URL_RETRIES):
            ctx.reset_timeout()
            with suppress(TimeoutError):
                async with asyncio.timeout(URL_WAIT_SECONDS):
                    for event in completed:
                        await event.wait()
            try:
                return await send_with_input(send, handler, ctx)
            except JsonRpcError as error:
                if error.code != URL_ELICITATION_REQUIRED or all(event.is_set() for event in completed):
                    raise
                refusal = error
    raise refusal


async def send_with_input(send: Send, handler: ServerRequestHandler, ctx: Context | None) -> Raw:
    """Send a request and return its final result. The handler answers the input requests."""
    result = await send({})
    pause = MIN_PAUSE_SECONDS
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        extra: Raw = {}
        if isinstance(requests := result.get("inputRequests"), dict) and requests:
            extra["inputResponses"] = await _answer_all(requests, handler, ctx)
            pause = MIN_PAUSE_SECONDS
        else:  # the server only wants the request again
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        if "requestState" in result:
            extra["requestState"] = result["requestState"]
        result = await send(extra)
    if result.get("resultType") != "input_required":
        return result
    raise McpFailed(f"The server answered `input_required` {MAX_ROUNDS} times in a row; the call was given up.")


async def _answer_all(requests: Raw, handler: ServerRequestHandler, ctx: Context | None) -> Raw:
    """All at once. The first failure ends them all, because a server needs every answer."""

    async def answer(key: str, request: Any) -> Raw:
        current_question.set(InputRequest(key, len(requests)))  # visible in this task only
        method, params = (request.get("method"), request.get("params")) if isinstance(request, dict) else (None, None)
        try:
            return await handler.on_request(str(method), params if isinstance(params, dict) else {}, ctx)
        except JsonRpcError as error:
            raise McpFailed(f"The server needs more input and cannot get it: {error.message}.") from None

    tasks = [asyncio.create_task(answer(key, request)) for key, request in requests.items()]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return dict(zip(requests, answers, strict=True))


def _required_urls(error: JsonRpcError) -> list[Raw]:
    """The URL elicitations that an error requires; empty for another error."""
    elicitations = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != URL_ELICITATION_REQUIRED or not isinstance(elicitations, list):
        return []
    return [one for one in elicitations if isinstance(one, dict) and isinstance(one.get("elicitationId"), str)][
        :MAX_URLS
    ]
