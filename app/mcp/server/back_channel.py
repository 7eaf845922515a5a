"""Mouths: the two ways in which a client that waits for a call is asked something.

Attendants: clients of the door that wait for a call, and what they are asked and told meanwhile.

Up to 2025 a client is asked on the stream of its own request. From 2026 on its request is answered with the
questions; it comes again with the answers, and waits for the same call. What is asked is the same either way.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from app.core.asks import Ask, AskKind
from app.core.errors import Declined, StoreError
from app.core.util.json_codec import Raw
from app.dispatch.permission.asks import AnswerRefused, AskEnded, AskQueue
from app.mcp.client.input_required import InputRequest, current_question
from app.mcp.server.elicitation import URL, answer_of, form_of, mode_of
from app.mcp.server.request_context import is_sayable

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from app.core.principals import Key
if TYPE_CHECKING:
    from pydantic import BaseModel

    from app.mcp.server.request_context import Ctx


log = logging.getLogger(__name__)

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"


class ClientChannel(Protocol):
    """How a client is asked."""

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        """Its answer; raises `Declined` when there will be none. `count`: it is one of so many that come together."""
        ...


class McpBackChannel:
    """The `Attendant` port: the client that waits for one call."""

    def __init__(
        self, key: "Key", desk: AskQueue, mouth: ClientChannel, capabilities: "ClientCapabilities | None", tell: "Tell"
    ) -> None:
        self._key = key
        self._desk = desk
        self._mouth = mouth
        self._can = capabilities
        self._tell = tell
        self._putting: dict[str, asyncio.Task[None]] = {}
        self._asked = 0

    def offers(self, method: str, params: dict[str, Any]) -> bool:
        can = self._can
        if can is None:
            return False
        if method == SAMPLE:
            wants_tools = "tools" in params or "toolChoice" in params
            return can.sampling is not None and (not wants_tools or can.sampling.tools is not None)
        return method == ROOTS and can.roots is not None

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        asked = current_question.get() or InputRequest(f"{method}-{self._asked}", 1)
        return await self._mouth.ask(asked.key, method, params, asked.of)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._tell(method, params)

    def opened(self, ask: Ask) -> None:
        form = form_of(ask, self._key)
        if form is not None and self._elicits(mode_of(form)):
            self._putting[ask.id] = asyncio.create_task(self._put(ask, form))

    def ended(self, ask: Ask) -> None:
        """Whoever answered it: nobody need ask the client any more."""
        task = self._putting.pop(ask.id, None)
        if task is not None:
            task.cancel()

    def _elicits(self, mode: str) -> bool:
        """Who says nothing of modes knows forms."""
        can = self._can.elicitation if self._can is not None else None
        if can is None:
            return False
        return can.url is not None if mode == URL else can.form is not None or can.url is None

    async def _put(self, ask: Ask, form: Raw) -> None:
        """Put an ask to the client's user. Without an answer it stays open for everybody else."""
        asked = (current_question.get() if ask.kind is AskKind.ELICITATION else None) or InputRequest(ask.id, 1)
        try:
            said = await self._mouth.ask(asked.key, ELICIT, form, asked.of)
        except Declined as declined:
            log.info("the MCP client did not put ask %s to its user: %s", ask.id, declined)
            return
        self._putting.pop(ask.id, None)
        try:
            await self._desk.answer(ask, answer_of(ask, said, self._key), self._key)
        except AskEnded:
            pass  # somebody was faster
        except (AnswerRefused, StoreError) as error:
            log.warning("the answer of an MCP client to ask %s does not count: %s", ask.id, error)


Tell = Callable[[str, Raw], None]
"""Tells a client something, if it wants to hear that; at once, and without saying whether it came there."""


STATE = "requestState"
LEFT = "The MCP client has left."
RESPONSES = "inputResponses"
TOGETHER = 1.0
"""Seconds that questions which belong together wait for each other."""
MOST_ROUNDS = 64
"""How often one call may have its client come again."""


class PushChannel:
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


class InputRequiredChannel:
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
