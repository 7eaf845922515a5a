"""The points at which a service can be made to kill itself, so that nobody has to hope for the right moment.

The product knows nothing of them: `arm` puts counters around its methods, in the process that is to die. A point of a
transaction is named after what the transaction holds and how far it is:

    before      all statements are done, COMMIT is not
    after       COMMIT is done, nobody was told
    told        subscribers were told, who waits for the commit was not
    unanswered  who waits for the commit knows, no client does
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import app.service
from app.api import create_call
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.events.output_spool import Spool
from app.dispatch.finish import FinishStage
from app.dispatch.journal import Journal
from app.dispatch.live_calls import LiveCalls
from app.service import Service
from app.store import asks, calls, outputs, sessions
from app.store.writer import Writer

COMMITS = {
    "accept": ("before", "after", "told"),
    "claim": ("before", "after", "unanswered"),
    "wait": ("before", "after"),
    "settle": ("before", "after"),
    "start": ("before", "after"),
    "output": ("before", "after"),
    "plan": ("before", "after"),
    "wish": ("before", "after"),
    "ask": ("before", "after"),
    "reply": ("before", "after", "told"),
    "end": ("before", "after", "told"),
    "adopt": ("before", "after"),
}
"""Transactions by what they hold: a new call, its Idempotency-Key, its wait at the gate, its arguments, its start,
a piece of output, a plan, the wish to cancel, an ask, its end, a call's end, a call taken over from a dead service."""

STAGES = {
    "submit": "a request has become a call, and nothing is written",
    "submit.batch": "in the middle of a batch",
    "run": "before the tool's first line",
    "mark": "the tool has had its side effect and has not returned",
    "output.spool": "output is handed to the writer",
    "output.told": "output was told",
    "finish": "the tool has returned, and its end is not handed over",
    "answer": "the answer is made and not sent",
    "cancel": "a cancel was asked for, and nothing is written of it",
    "cancel.stop": "the wish is written, and the call not stopped",
    "recover": "recovery begins",
    "recover.bury": "a call that ran is about to get its end",
    "recover.resume": "a call that waited is about to be taken over",
    "recover.done": "recovery is done, and nobody can connect",
    "drain": "the service is asked to stop",
    "drain.interrupt": "the grace is over",
    "drain.done": "every call has ended or waits for the next start",
    "close": "the writer is about to be closed",
}

POINTS = (*STAGES, *(f"{kind}.{stage}" for kind, stages in COMMITS.items() for stage in stages))

_WRITES = {
    "accept": (calls, "add"),
    "claim": (calls, "claim"),
    "wait": (calls, "set_waiting"),
    "settle": (calls, "set_effective"),
    "start": (calls, "start"),
    "output": (outputs, "add"),
    "plan": (sessions, "save_plan"),
    "wish": (calls, "request_cancel"),
    "ask": (asks, "add"),
    "reply": (asks, "end"),
    "end": (calls, "close"),
    "adopt": (calls, "adopt"),
}


RECORD = "record"


@dataclass(slots=True)
class Fuse:
    """Kills the process when its point is reached for the n-th time, or writes down all points as they are reached."""

    point: str
    left: int = 0
    log: Path | None = None
    held: set[str] = field(default_factory=set)

    def reach(self, *points: str) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.writelines(f"{point}\n" for point in points)
        if self.point in points:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

    def reach_stage(self, stage: str) -> None:
        """The transaction under way, or the last one, has come this far."""
        self.reach(*(f"{kind}.{stage}" for kind in self.held))


def arm(fault: str, toys: Any) -> None:
    """`point:n`: let this process die when the point is reached for the n-th time; `record:file`: let it live, and
    write the points it reaches to the file. `toys` is where `leave_mark` is."""
    point, _, more = fault.partition(":")
    assert point in (*POINTS, RECORD), f"there is no point {point}"
    fuse = Fuse(point, log=Path(more)) if point == RECORD else Fuse(point, int(more))
    _arm_stages(fuse, toys)
    _arm_commits(fuse)


def _arm_stages(fuse: Fuse, toys: Any) -> None:
    def at(*points: str) -> Callable[..., None]:
        return lambda *args, **kwargs: fuse.reach(*points)

    def at_submit(*args: Any, batch_slot: object = None, **kwargs: Any) -> None:
        fuse.reach("submit", *(["submit.batch"] if batch_slot else []))

    _wrap(Dispatcher, "submit", before=at_submit)
    _wrap(Dispatcher, "_execute", before=at("run"))
    _wrap(toys, "leave_mark", after=at("mark"))
    _wrap(Spool, "_send", before=lambda spool: fuse.reach(*(["output.spool"] if spool._chunks else [])))
    _wrap(EventHub, "publish_output", after=at("output.told"))
    _wrap(FinishStage, "run", before=at("finish"))
    _wrap(create_call, "call_response", after=at("answer"))
    _wrap(Dispatcher, "cancel", before=at("cancel"))
    _wrap(LiveCalls, "cancel", before=at("cancel.stop"))
    _wrap(app.service, "recover", before=at("recover"), after=at("recover.done"))
    _wrap(Journal, "end_orphan", before=at("recover.bury"))
    _wrap(Dispatcher, "resume", before=at("recover.resume"))
    _wrap(LiveCalls, "drain", before=at("drain"))
    _wrap(LiveCalls, "interrupt_all", before=at("drain.interrupt"))
    _wrap(Service, "drain", after=at("drain.done"))
    _wrap(Writer, "close", before=at("close"))


def _arm_commits(fuse: Fuse) -> None:
    class Cursor(sqlite3.Cursor):
        """The writer's cursor, which sees every BEGIN and COMMIT."""

        def execute(self, sql: str, *params: Any) -> "Cursor":
            if sql == "BEGIN IMMEDIATE":
                fuse.held.clear()
            elif sql == "COMMIT":
                fuse.reach_stage("before")
            super().execute(sql, *params)
            if sql == "COMMIT":
                fuse.reach_stage("after")
            return self

    def hold(kind: str) -> Callable[..., None]:
        return lambda *args: fuse.held.add(kind)

    def use_cursor(writer: Writer, *args: Any) -> None:
        writer._cursor = writer._db.cursor(Cursor)

    for kind, (module, name) in _WRITES.items():
        _wrap(module, name, before=hold(kind))
    _wrap(Writer, "__init__", after=use_cursor)
    _wrap(Writer, "_resolve", before=lambda *args: fuse.reach_stage("told"))
    _wrap(Writer, "_resolve", after=lambda *args: fuse.reach_stage("unanswered"))


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _wrap(
    owner: Any, name: str, *, before: Callable[..., object] = _nothing, after: Callable[..., object] = _nothing
) -> None:
    """Put something before or after a function, where everybody looks it up."""
    inner = getattr(owner, name)
    if asyncio.iscoroutinefunction(inner):

        @wraps(inner)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            found = await inner(*args, **kwargs)
            after(*args, **kwargs)
            return found

        setattr(owner, name, awaited)
        return

    @wraps(inner)
    def called(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        found = inner(*args, **kwargs)
        after(*args, **kwargs)
        return found

    setattr(owner, name, called)
