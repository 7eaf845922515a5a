"""Runs on their way to the store: a model message and the calls that came of it, kept with their first commit."""

import asyncio
from dataclasses import replace
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.redaction import Redactor
from app.core.runs import Run
from app.core.util.json_codec import dumps
from app.store import runs
from app.store.writer import Writer

Calls = tuple[tuple[str, ...], ...]


class RunStore:
    """Keeps runs. Of what a model wrote only that is kept which its answers need; the rest is in the calls."""

    def __init__(self, engine: AsyncEngine, writer: Writer, redactor: Redactor) -> None:
        self._engine = engine
        self._writer = writer
        self._redactor = redactor

    def keep(self, run: Run) -> "asyncio.Future[bool]":
        """Hand a run to the writer; what is handed over at the same time is committed with it. The answer is whether
        the message is new."""
        return self._writer.submit(partial(runs.add, run=run, body=self._body(run)))

    async def settle(self, run: Run, is_kept: "asyncio.Future[bool]", calls: Calls) -> Run:
        """The run as it stands: the one there was if the message came before, else with the calls that really carry it
        out, some of which may have been there already."""
        if not await is_kept:
            first = await runs.by_fingerprint(self._engine, run.principal, run.fingerprint)
            if first is not None:
                return first
        elif calls != run.calls:
            corrected = replace(run, calls=calls)
            await self._writer.submit(partial(runs.correct, run=corrected, body=self._body(corrected)))
            return corrected
        return run

    async def get(self, id: str, principal: str | None) -> Run | None:
        return await runs.get(self._engine, id, principal)

    def _body(self, run: Run) -> str:
        return self._redactor.json(dumps(runs.body_of(run)).decode())
