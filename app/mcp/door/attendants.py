"""Attendants: clients of the door that wait for a call, and what they are asked and told meanwhile.

Up to 2025 a client is asked on the stream of its own request. From 2026 on its request is answered with the
questions; it comes again with the answers, and waits for the same call. What is asked is the same either way.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from app.core.asks import Ask, AskKind
from app.core.errors import Declined, StoreError
from app.core.jsons import Raw
from app.dispatch.desk import AnswerRefused, AskEnded, Desk
from app.mcp.door.asks import URL, answer_of, form_of, mode_of
from app.mcp.rounds import Asked, current_question

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from app.core.principals import Key

log = logging.getLogger(__name__)

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"


class Mouth(Protocol):
    """How a client is asked."""

    async def ask(self, id: str, method: str, params: Raw, count: int) -> Raw:
        """Its answer; raises `Declined` when there will be none. `count`: it is one of so many that come together."""
        ...


class DoorAttendant:
    """The `Attendant` port: the client that waits for one call."""

    def __init__(
        self, key: "Key", desk: Desk, mouth: Mouth, capabilities: "ClientCapabilities | None", tell: "Tell"
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
        asked = current_question.get() or Asked(f"{method}-{self._asked}", 1)
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
        asked = (current_question.get() if ask.kind is AskKind.ELICITATION else None) or Asked(ask.id, 1)
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
