"""Doom loops: an agent that repeats the same call. Only sessions that callers made are watched, never `default`.

Three calls in a row with the same tool, arguments and result are a doom loop; it is found before the third one runs.
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

REPEATS = 3
MAX_SESSIONS = 10_000

Turn = tuple[str, str]
"""Hash of the call, and hash of its outcome."""


class DoomLoopGuard:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._loading = asyncio.Lock()
        self._turns: OrderedDict[tuple[str, str], list[Turn]] = OrderedDict()

    def watches(self, tool: Tool, session: Session) -> bool:
        return not session.is_default and not tool.polls

    def has_loaded(self, session: Session) -> bool:
        return (session.principal, session.id) in self._turns

    async def load(self, session: Session) -> None:
        """Read the last calls of a session that is new here, so that a restart does not reset the count.

        One session at a time, so that calls continue in the order they came.
        """
        async with self._loading:
            if self.has_loaded(session):
                return
            filter = CallFilter(principal=session.principal, session=session.id)
            recent = await calls.page(self._engine, filter, REPEATS)
            turns = [_turn(digest_of(call.tool, _payload(call)), call) for call in reversed(recent) if call.is_final]
            self._remember(session, turns)

    def needs(self, tool: Tool, session: Session, digest: str) -> list[Need]:
        """The `doom_loop` permission, when the call would be the third in a row."""
        if not self.watches(tool, session):
            return []
        last = self._turns.get((session.principal, session.id), [])[1 - REPEATS :]
        is_loop = len(last) == REPEATS - 1 and len(set(last)) == 1 and last[0][0] == digest
        return [Need(DOOM_LOOP, tool.name)] if is_loop else []

    def reset(self, session: Session) -> None:
        """A person or a rule allowed the third call: count from zero again."""
        self._remember(session, [])

    def record(self, session: Session, digest: str, call: Call) -> None:
        """A call of the session has ended."""
        if not self.has_loaded(session):
            return
        turns = self._turns[session.principal, session.id]
        self._remember(session, [*turns, _turn(digest, call)][1 - REPEATS :])

    def _remember(self, session: Session, turns: list[Turn]) -> None:
        self._turns[session.principal, session.id] = turns
        self._turns.move_to_end((session.principal, session.id))
        if len(self._turns) > MAX_SESSIONS:
            self._turns.popitem(last=False)


def digest_of(tool: str, payload: Any) -> str:
    """Equal for equal tools and arguments, in whatever order the arguments stand."""
    return hashlib.sha256(f"{tool}\0".encode() + dumps(payload, sort=True)).hexdigest()


def _payload(call: Call) -> Any:
    text = call.effective or call.arguments
    return call.input if text is None else json.loads(text)


def _turn(digest: str, call: Call) -> Turn:
    """Only the output that the model reads counts; times and sizes differ each time."""
    output = json.loads(call.result)["output"] if call.result else None
    return digest, hashlib.sha256(dumps([output, call.error])).hexdigest()
