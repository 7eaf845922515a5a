"""The last stages of a call: redact and truncate its result, run the after-hooks."""

import asyncio
import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from app.core.errors import CallError, Internal
from app.core.hooks import Point
from app.core.results import Result, Truncation, truncate
from app.core.tools import Tool
from app.core.util.head_tail import SIZE_FIELDS
from app.dispatch.hooks import HookOutcome, Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCall
from app.dispatch.redaction import CallRedactor
from app.dispatch.tools.registry import Registry

log = logging.getLogger(__name__)


class Shown(NamedTuple):
    """A result as the model sees it, and its whole output when that was cut."""

    result: Result | None
    whole: str | None


class FinishStage:
    """From what a tool returned, or the error, to the end that is written."""

    def __init__(self, journal: Journal, redactor: CallRedactor, hooks: Hooks, registry: Registry) -> None:
        self._journal = journal
        self._redactor = redactor
        self._hooks = hooks
        self._registry = registry

    def show(self, live: LiveCall, tool: Tool | None, result: Result) -> Shown:
        """Redact the result and truncate it if it is too long."""
        result = self._redactor.redact_output(result)
        shown = truncate(result, tool.truncation if tool else Truncation())
        is_cut = shown.output is not result.output and live.record.spool is None
        return Shown(shown, result.output if is_cut else None)

    async def run(self, live: LiveCall, shown: Shown | None, error: CallError | None) -> HookOutcome:
        """How the call went: its result, or its error with what output there was, as after-hooks leave it."""
        live.block_interrupts()
        tool = self._registry.get(live.call.tool, live.session.principal)
        if error is not None:
            shown = await self._output_so_far(live, tool, error)
        result, whole = shown or (None, None)
        has_run = live.execution.has_run
        outcome = HookOutcome(
            executed=has_run,
            result=result,
            error=error,
            whole=whole,
            duration_ms=self._journal.elapsed_us(live) / 1000 if has_run else None,
        )
        if self._hooks.is_empty or tool is None or not self._hooks.has(Point.AFTER, tool.name):
            return outcome
        return await self._run_after_hooks(live, tool, outcome)

    async def _run_after_hooks(self, live: LiveCall, tool: Tool, outcome: HookOutcome) -> HookOutcome:
        """A cancel meanwhile turns a success into its error; a call that had failed keeps its error."""
        publish = partial(self._journal.publish_hook, live)
        try:
            if live.stop is None:
                live.allow_interrupts()
            reviewed = await self._hooks.after(live.call, tool, live.session, _payload(live), outcome, publish)
        except asyncio.CancelledError:
            stop = live.stop or Internal("A hook was canceled from inside; this is a bug of the hook.")
            return outcome if outcome.error else replace(outcome, error=stop)
        finally:
            live.block_interrupts()
        if reviewed.result is None or reviewed.result is outcome.result:
            return reviewed
        metadata = {name: value for name, value in reviewed.result.metadata.items() if name not in SIZE_FIELDS}
        result, whole = self.show(live, tool, replace(reviewed.result, metadata=metadata))
        return replace(reviewed, result=result, whole=whole)

    async def _output_so_far(self, live: LiveCall, tool: Tool | None, error: CallError) -> Shown | None:
        """The output of a failed call: what the error carries, or what was spooled until then."""
        result = error.result
        if result is None and live.record.spool is not None:
            await live.record.spool.finish()
            try:
                result = await self._journal.partial(live.call, tool.truncation if tool else Truncation())
            except Exception:
                log.exception("the output of call %s cannot be read; its end is written without it", live.call.id)
        return None if result is None else self.show(live, tool, result)


def _payload(live: LiveCall) -> Any:
    """What went into the tool, or would have."""
    if live.record.effective_arguments is not None:
        return json.loads(live.record.effective_arguments)
    request = live.request
    return request.input if request.arguments is None and request.input is not None else request.arguments or {}
