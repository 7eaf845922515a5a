"""Elicitations on the line: a running call lets a person be asked, and nobody waits for it meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from app.core.asks import Answer, Ask
from app.core.errors import CallError
from app.core.principals import Key, Scope
from app.core.results import Result
from app.core.tools import Context, Effect, Lane, typed
from app.dispatch.live_calls import LiveCall
from app.store import asks
from tests.support.services import HANG, Crib, until

REVIEWER = Key("key_r", "ada", "", frozenset({Scope.ASKS_ANSWER}), "", 0)
FORM = {"server": "toy", "mode": "form", "message": "Your name?", "requested_schema": {"type": "object"}}


class ElicitArgs(BaseModel, extra="forbid"):
    beside: bool = False
    """Ask in a task beside the call's own, as the link of an MCP server does."""
    take_back: bool = False


class Elicitor:
    """A tool that asks a person while it runs."""

    def __init__(self) -> None:
        self.said: list[Answer | str] = []
        self.taken_back = asyncio.Event()
        self.done = asyncio.Event()
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.asking: asyncio.Task[None] | None = None

    async def run(self, args: ElicitArgs, ctx: Context) -> Result:
        if not args.beside:
            await self._ask(ctx)
            return Result("asked")
        self.started.set()
        await self.go.wait()
        self.asking = asyncio.create_task(self._ask(ctx))
        if args.take_back:
            await self.taken_back.wait()
            self.asking.cancel()
            await asyncio.wait([self.asking])
        try:
            await self.done.wait()
        finally:
            self.asking.cancel()
            await asyncio.wait([self.asking])
        return Result("asked beside")

    async def _ask(self, ctx: Context) -> None:
        try:
            self.said.append(await ctx.elicit(FORM))
        except CallError as error:
            self.said.append(error.code)
            raise


@pytest.fixture
def elicitor() -> Elicitor:
    return Elicitor()


@pytest.fixture
async def eliciting(crib: Crib, elicitor: Elicitor) -> AsyncIterator[Crib]:
    tool = typed(
        ElicitArgs,
        name="elicit",
        description="Asks.",
        effect=Effect.WRITE,
        needs=lambda args, scope: [],
        run=elicitor.run,
        timeout=1.0,
    )
    crib.toys.more = [tool]
    await crib.open()
    yield crib
    await crib.close()


async def asked(crib: Crib, live: LiveCall) -> Ask:
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None and live._is_interruptible)
    assert live.approval.ask is not None
    return live.approval.ask


async def stored(crib: Crib, ask: Ask) -> dict[str, Any]:
    found = await asks.get(crib.services.engine, ask.id, None)
    assert found is not None
    return found.view()


@pytest.mark.parametrize("beside", [False, True])
async def test_the_answer_flows_back_into_the_call_that_runs(eliciting: Crib, elicitor: Elicitor, beside: bool) -> None:
    live = eliciting.submit("elicit", {"beside": beside})
    ask = await asked(eliciting, live)
    shown = ask.view()
    row = eliciting.row(live.call.id)

    await eliciting.services.asks.answer(ask, Answer(content={"name": "Ada"}), REVIEWER)
    await until(lambda: elicitor.said)
    elicitor.done.set()
    view = await eliciting.ended(live)

    assert (shown["kind"], shown["metadata"], shown["tool"]) == ("elicitation", FORM, "elicit")
    assert (row["status"], row["waiting"]) == ("running", "input")
    assert elicitor.said == [Answer(content={"name": "Ada"}, principal="ada", key="key_r")]
    assert view["status"] == "completed"
    assert eliciting.story(live.call.id) == [
        *("call.pending", "call.running", "call.waiting", "ask.opened", "ask.answered", "call.waiting"),
        "call.completed",
    ]


async def test_while_a_person_thinks_others_have_the_lane_and_no_time_passes(
    eliciting: Crib, elicitor: Elicitor
) -> None:
    live = eliciting.submit("elicit")
    ask = await asked(eliciting, live)

    between = await eliciting.run("note", {"text": "meanwhile"})
    await asyncio.sleep(1.1)  # longer than the tool may take
    await eliciting.services.asks.answer(ask, Answer(content={}), REVIEWER)
    view = await eliciting.ended(live)

    assert between["status"] == "completed"
    assert view["status"] == "completed", view["error"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_is_an_answer_too(eliciting: Crib, elicitor: Elicitor, action: str) -> None:
    live = eliciting.submit("elicit")
    ask = await asked(eliciting, live)

    await eliciting.services.asks.answer(ask, Answer(action=action), REVIEWER)
    view = await eliciting.ended(live)

    assert elicitor.said == [Answer(action=action, principal="ada", key="key_r")]
    assert view["status"] == "completed"


async def test_an_elicitation_nobody_answers_expires(eliciting: Crib, elicitor: Elicitor) -> None:
    live = eliciting.submit("elicit", ask_timeout=0.05)
    view = await eliciting.ended(live)

    assert elicitor.said == ["AskExpired"]
    assert view["error"]["code"] == "AskExpired"


async def test_where_nobody_is_asked_it_is_declined_at_once(eliciting: Crib, elicitor: Elicitor) -> None:
    view = await eliciting.run("elicit", on_ask="deny")

    assert elicitor.said == ["Declined"]
    assert view["error"]["code"] == "Declined"
    assert eliciting.rows("SELECT * FROM asks") == []


@pytest.mark.parametrize("beside", [False, True])
async def test_a_call_that_is_canceled_takes_its_ask_along(eliciting: Crib, beside: bool) -> None:
    live = eliciting.submit("elicit", {"beside": beside})
    ask = await asked(eliciting, live)

    await eliciting.cancel(live)

    assert eliciting.end(live.call.id) == ("error", "Canceled")
    assert (await stored(eliciting, ask))["status"] == "expired"
    assert eliciting.services.asks.open_asks == 0


async def test_a_cancel_in_the_middle_of_a_commit_of_a_task_beside_reaches_the_call(
    eliciting: Crib, elicitor: Elicitor
) -> None:
    """The ask is being written when the wish to stop comes: the call's own task hears of it all the same."""
    elicitor.go.clear()
    live = eliciting.submit("elicit", {"beside": True})
    await until(elicitor.started.is_set)
    with eliciting.stalled_writer():
        elicitor.go.set()
        await until(lambda: live.approval.ask is not None and not live._is_interruptible)
        stopping = asyncio.create_task(eliciting.cancel(live))
        await until(lambda: live.stop is not None)
    await stopping

    assert eliciting.end(live.call.id) == ("error", "Canceled")
    assert [row["status"] for row in eliciting.rows("SELECT status FROM asks")] == ["expired"]


async def test_what_is_taken_back_is_over_and_the_call_goes_on(eliciting: Crib, elicitor: Elicitor) -> None:
    live = eliciting.submit("elicit", {"beside": True, "take_back": True})
    ask = await asked(eliciting, live)

    elicitor.taken_back.set()
    await until(lambda: live.call.waiting is None and live.approval.ask is None)
    over = await stored(eliciting, ask)
    elicitor.done.set()
    view = await eliciting.ended(live)

    assert (over["status"], over["reason"]) == ("expired", "The ask was withdrawn.")
    assert view["status"] == "completed"


async def test_what_is_taken_back_while_it_is_being_written_is_over_too(eliciting: Crib, elicitor: Elicitor) -> None:
    elicitor.go.clear()
    live = eliciting.submit("elicit", {"beside": True, "take_back": True})
    await until(elicitor.started.is_set)
    with eliciting.stalled_writer():
        elicitor.go.set()
        await until(lambda: live.approval.ask is not None and not live._is_interruptible)
        elicitor.taken_back.set()
        await asyncio.sleep(0)
    await until(lambda: live.call.waiting is None and live.approval.ask is None)
    elicitor.done.set()
    view = await eliciting.ended(live)

    assert view["status"] == "completed"
    assert [row["status"] for row in eliciting.rows("SELECT status FROM asks")] == ["expired"]


async def test_after_a_restart_the_call_is_interrupted_and_its_ask_is_over(eliciting: Crib) -> None:
    live = eliciting.submit("elicit")
    ask = await asked(eliciting, live)

    await eliciting.crash()
    await eliciting.open()

    [row] = eliciting.rows("SELECT status, error FROM calls")
    assert (row["status"], json.loads(row["error"])["code"]) == ("error", "Interrupted")
    assert (await stored(eliciting, ask))["status"] == "expired"


class LiveArgs(BaseModel, extra="forbid"):
    steps: int


@pytest.mark.parametrize(("limit", "status"), [(None, "completed"), (0.5, "error")])
async def test_signs_of_life_start_the_tools_time_anew_but_not_the_callers(
    crib: Crib, limit: float | None, status: str
) -> None:
    async def run(args: LiveArgs, ctx: Context) -> Result:
        for _ in range(args.steps):
            await asyncio.sleep(0.1)
            ctx.reset_timeout()
        return Result("alive")

    tool = typed(
        LiveArgs,
        name="live",
        description="Lives.",
        effect=Effect.READ,
        needs=lambda args, scope: [],
        run=run,
        lane=Lane.NONE,
        timeout=0.5,
    )
    crib.toys.more = [tool]
    await crib.open()

    async with asyncio.timeout(HANG):
        view = await crib.run("live", {"steps": 8}, timeout=limit)

    assert view["status"] == status
