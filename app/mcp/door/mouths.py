"""Mouths: the two ways in which a client that waits for a call is asked something."""

import asyncio
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from app.core.errors import Declined
from app.core.jsons import Raw
from app.mcp.door.callers import is_sayable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from app.mcp.door.callers import Ctx

STATE = "requestState"
LEFT = "The MCP client has left."
RESPONSES = "inputResponses"
TOGETHER = 1.0
"""Seconds that questions which belong together wait for each other."""
MOST_ROUNDS = 64
"""How often one call may have its client come again."""


class Pushed:
    """Asks on the stream of the request that made the call."""

    def __init__(self, ctx: "Ctx") -> None:
        self._ctx = ctx
        self._asking: set[asyncio.Task[Raw]] = set()
        self._has_left = False

    def leave(self) -> None:
        """The stream is over, and with it whatever was asked on it."""
        self._has_left = True
        for task in self._asking:
            task.cancel()

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        if self._has_left:
            raise Declined(LEFT)
        task = asyncio.create_task(self._ask(method, params))
        self._asking.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._asking.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise Declined(LEFT)
        return task.result()

    async def _ask(self, method: str, params: Raw) -> Raw:
        from mcp import MCPError
        from mcp.shared.message import ServerMessageMetadata
        from pydantic import ValidationError

        asked, anything = _wire_models()
        where = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        request: Any = asked(method=method, params=_without_empty(params))
        try:
            said = await self._ctx.session.send_request(request, anything, metadata=where)
        except (MCPError, ValidationError) as error:
            raise Declined(f"The MCP client did not answer: {error}.") from None
        return said.model_dump(mode="json")


@lru_cache
def _wire_models() -> "tuple[type[BaseModel], type[BaseModel]]":
    """A request and a result with nothing lost of them. Made late, as the SDK is loaded late."""
    from pydantic import ConfigDict, create_model

    asked = create_model("Asked", method=(str, ...), params=(dict[str, Any] | None, None))
    return asked, create_model("Anything", __config__=ConfigDict(extra="allow"))


@dataclass(slots=True)
class Question:
    """One that waits for the client to come again."""

    method: str
    params: Raw
    answer: "asyncio.Future[Raw]"


class Rounds:
    """Gathers questions until the client's request is answered with them, and takes the answers it comes back with.

    `turn` is set while there is something to ask. A client may know beforehand what a server will ask, and bring the
    `given` answers along with its first request.
    """

    def __init__(self, version: str, given: Any = None) -> None:
        self.turn = asyncio.Event()
        self._version = version
        self._given: Raw = dict(given) if isinstance(given, dict) else {}
        self._open: dict[str, Question] = {}
        self._count = 0

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        if isinstance(said := self._given.pop(id, None), dict):
            return said
        while id in self._open:  # two servers may call their questions the same
            id += "_"
        form = {"resultType": "input_required", "inputRequests": {id: _said(method, params)}}
        if not is_sayable("tools/call", self._version, form):
            raise Declined(f"The MCP client cannot be asked this: {method} does not fit its version of the protocol.")
        if self._count >= MOST_ROUNDS:
            raise Declined(f"The MCP client came back {MOST_ROUNDS} times for this call already.")
        loop = asyncio.get_running_loop()
        question = self._open[id] = Question(method, params, loop.create_future())
        others = loop.call_later(0 if len(self._open) >= count else TOGETHER, self.turn.set)
        try:
            return await question.answer
        finally:
            others.cancel()
            self._open.pop(id, None)
            self._look()

    def take(self, responses: Any) -> None:
        """What the client came back with. Answers to what is not asked any more are no harm."""
        for id, said in responses.items() if isinstance(responses, dict) else ():
            if isinstance(said, dict) and (question := self._open.pop(id, None)):
                question.answer.set_result(said)
        self._look()

    def result(self, state: str) -> Raw:
        """The answer to a request that has to come again."""
        self._count += 1
        asked = {id: _said(question.method, question.params) for id, question in self._open.items()}
        return {"resultType": "input_required", "inputRequests": asked, STATE: state}

    def _look(self) -> None:
        if not self._open:
            self.turn.clear()


def _said(method: str, params: Raw) -> Raw:
    said = _without_empty(params)
    if method == "elicitation/create":
        said.pop("elicitationId", None)  # has gone with 2026
    return {"method": method, "params": said} if said else {"method": method}


def _without_empty(params: Raw) -> Raw:
    return {name: value for name, value in params.items() if value is not None}
