"""Loops: whether an agent turns in circles. Watched are the sessions that callers made, never `default`.

Three calls in a row with the same tool, arguments and result are a doom loop, and it is noticed before the third runs.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.calls import Call
from app.core.rules import DOOM_LOOP, Need
from app.core.sessions import Session
from app.core.tools import Tool
from app.core.util.json_codec import dumps
from app.store import calls
from app.store.calls import CallFilter

IN_A_ROW = 3
MOST_SESSIONS = 10_000

Turn = tuple[str, str]
"""What was called, and what came of it."""


class DoomLoopGuard:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._learning = asyncio.Lock()
        self._turns: OrderedDict[tuple[str, str], list[Turn]] = OrderedDict()

    def watches(self, tool: Tool, session: Session) -> bool:
        return not session.is_default and not tool.polls

    def knows(self, session: Session) -> bool:
        return (session.principal, session.id) in self._turns

    async def learn(self, session: Session) -> None:
        """Read the last calls of a session that is new here. Without it a restart would make every agent innocent.

        One after the other, so that calls which came in this order go on in it.
        """
        async with self._learning:
            if self.knows(session):
                return
            wanted = CallFilter(principal=session.principal, session=session.id)
            recent = await calls.page(self._engine, wanted, IN_A_ROW)
            turns = [_turn(digest_of(call.tool, _payload(call)), call) for call in reversed(recent) if call.is_final]
            self._keep(session, turns)

    def needs(self, tool: Tool, session: Session, digest: str) -> list[Need]:
        """What a call needs besides the rest when it would be the third of its kind."""
        if not self.watches(tool, session):
            return []
        last = self._turns.get((session.principal, session.id), [])[1 - IN_A_ROW :]
        is_loop = len(last) == IN_A_ROW - 1 and len(set(last)) == 1 and last[0][0] == digest
        return [Need(DOOM_LOOP, tool.name)] if is_loop else []

    def forgive(self, session: Session) -> None:
        """A person or a rule let the third one run: the count starts anew."""
        self._keep(session, [])

    def note(self, session: Session, digest: str, call: Call) -> None:
        """A call of the session has ended."""
        if not self.knows(session):
            return
        turns = self._turns[session.principal, session.id]
        self._keep(session, [*turns, _turn(digest, call)][1 - IN_A_ROW :])

    def _keep(self, session: Session, turns: list[Turn]) -> None:
        self._turns[session.principal, session.id] = turns
        self._turns.move_to_end((session.principal, session.id))
        if len(self._turns) > MOST_SESSIONS:
            self._turns.popitem(last=False)


def digest_of(tool: str, payload: Any) -> str:
    """Equal for equal tools and arguments, however the arguments were ordered."""
    return hashlib.sha256(f"{tool}\0".encode() + dumps(payload, sort=True)).hexdigest()


def _payload(call: Call) -> Any:
    text = call.effective or call.arguments
    return call.input if text is None else json.loads(text)


def _turn(digest: str, call: Call) -> Turn:
    """Only what the model reads of a result counts; times and sizes beside it differ each time."""
    output = json.loads(call.result)["output"] if call.result else None
    return digest, hashlib.sha256(dumps([output, call.error])).hexdigest()
