"""Outcomes: what is left when a tool has run or a call has failed, seen by after-hooks, ready to be written.

Truncation: no output floods a model's context. The whole of it stays readable in the store.
"""

import asyncio
import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from app.core.errors import CallError, Internal
from app.core.hooks import Point
from app.core.results import Result
from app.core.tools import Tool, Truncation
from app.dispatch.hooks import HookOutcome, Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall
from app.dispatch.tools.registry import Registry
from app.dispatch.truncate import truncate

log = logging.getLogger(__name__)

SIZES = ("truncated", "original_size", "truncated_size")


class FinishStage:
    """The way from what a tool gave, or what went wrong, to the end that is written."""

    def __init__(self, journal: Journal, hooks: Hooks, registry: Registry) -> None:
        self._journal = journal
        self._hooks = hooks
        self._registry = registry

    def shown(self, live: LiveCall, tool: Tool | None, result: Result) -> tuple[Result, str | None]:
        """A result as it is shown: redacted, and cut if it is too long; then the whole output comes with it."""
        result = self._journal.cover.result(result)
        shown = truncate(result, tool.truncation if tool else Truncation())
        is_cut = shown.output is not result.output and live.spool is None
        return shown, result.output if is_cut else None

    async def settle(
        self, live: LiveCall, shown: tuple[Result, str | None] | None, error: CallError | None
    ) -> HookOutcome:
        """How a call went: what it gave, or its error with what output there was. Then the hooks have their say."""
        live.tighten()
        tool = self._registry.get(live.call.tool, live.session.principal)
        result, whole = await self._left_over(live, tool, error) if error else shown or (None, None)
        outcome = HookOutcome(
            executed=live.is_executed,
            result=result,
            error=error,
            whole=whole,
            duration_ms=self._journal.elapsed_us(live) / 1000 if live.is_executed else None,
        )
        if tool is None or not self._hooks.concern(Point.AFTER, tool.name):
            return outcome
        return await self._review(live, tool, outcome)

    async def _review(self, live: LiveCall, tool: Tool, outcome: HookOutcome) -> HookOutcome:
        """Let after-hooks look. A cancel meanwhile ends what was fine until then; what had failed stays as it is."""
        tell = partial(self._journal.tell_hook, live)
        try:
            if live.stop is None:
                live.loosen()
            seen = await self._hooks.after(live.call, tool, live.session, _given(live), outcome, tell)
        except asyncio.CancelledError:
            stop = live.stop or Internal("A hook was canceled from inside; this is a bug of the hook.")
            return outcome if outcome.error else replace(outcome, error=stop)
        finally:
            live.tighten()
        if seen.result is None or seen.result is outcome.result:
            return seen
        bare = {name: value for name, value in seen.result.metadata.items() if name not in SIZES}
        result, whole = self.shown(live, tool, replace(seen.result, metadata=bare))
        return replace(seen, result=result, whole=whole)

    async def _left_over(self, live: LiveCall, tool: Tool | None, error: CallError) -> tuple[Result | None, str | None]:
        """The output of a call that failed: what the error brings along, or what was spooled until then."""
        result = error.result
        if result is None and live.spool is not None:
            await live.spool.finish()
            result = await self._partial(live, tool)
        return self.shown(live, tool, result) if result is not None else (None, None)

    async def _partial(self, live: LiveCall, tool: Tool | None) -> Result | None:
        try:
            return await self._journal.partial(live.call, tool.truncation if tool else Truncation())
        except Exception:
            log.exception("the output of call %s cannot be read; its end comes without it", live.call.id)
            return None


def _given(live: LiveCall) -> Any:
    """What went into the tool, or would have."""
    if live.settled is not None:
        return json.loads(live.settled)
    request = live.request
    return request.input if request.arguments is None and request.input is not None else request.arguments or {}
