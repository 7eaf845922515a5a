"""Rounds: a server that needs to know more before it answers says so, gets it, and is asked again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from app.core.errors import McpFailed
from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import JsonRpcError, ServerRequestHandler

MOST = 10
"""Rounds until it counts as going in circles."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

Send = Callable[[Raw], Awaitable[Raw]]
"""Sends the request with these parameters added."""


class InputRequest(NamedTuple):
    """One of the things a server wants to know: what it calls that, and how many there are with it."""

    key: str
    of: int


current_question: ContextVar[InputRequest | None] = ContextVar("current_question", default=None)
"""What is being answered, for who passes it on and wants to say it in the same words."""


async def settle(send: Send, guest: ServerRequestHandler, about: Context | None) -> Raw:
    """The request's final result. What the server asks on the way is answered by the guest."""
    result = await send({})
    pause = FIRST_PAUSE
    for _ in range(MOST):
        if result.get("resultType") != "input_required":
            return result
        more: Raw = {}
        if isinstance(requests := result.get("inputRequests"), dict) and requests:
            more["inputResponses"] = await _answers(requests, guest, about)
            pause = FIRST_PAUSE
        else:  # it only wants to be asked again
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        if "requestState" in result:
            more["requestState"] = result["requestState"]
        result = await send(more)
    if result.get("resultType") != "input_required":
        return result
    raise McpFailed(f"The server wanted to know more {MOST} times in a row; that is where it ends.")


async def _answers(requests: Raw, guest: ServerRequestHandler, about: Context | None) -> Raw:
    """All at once. The first that cannot be answered ends them all: a server cannot go on with a part."""
    keys = list(requests)
    asked = [(InputRequest(key, len(keys)), requests[key]) for key in keys]
    tasks = [asyncio.create_task(_answer(one, request, guest, about)) for one, request in asked]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return dict(zip(keys, found, strict=True))


async def _answer(asked: InputRequest, request: Any, guest: ServerRequestHandler, about: Context | None) -> Raw:
    current_question.set(asked)  # in a task of its own
    method, params = (request.get("method"), request.get("params")) if isinstance(request, dict) else (None, None)
    try:
        return await guest.asked(str(method), params if isinstance(params, dict) else {}, about)
    except JsonRpcError as said:  # by us, this time
        raise McpFailed(f"The server wants to know more before it answers, and cannot: {said.message}.") from None
