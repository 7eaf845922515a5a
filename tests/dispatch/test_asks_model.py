"""Hundreds of calls with rules, answers, cancels, expiries and restarts at random, beside a model of a few lines."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.config import RuleSetting
from app.core.asks import Answer, Ask, Decision
from app.core.principals import Key, Scope
from app.core.rules import Action, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.dispatch.permission.asks import AskEnded
from app.store import sessions as stored_sessions
from tests.support.scale import rounds
from tests.support.services import Crib, copy_database, until
from tests.support.toy_tools import Toys

PERSON = Key("key_p", "ada", "", frozenset({Scope.ASKS_ANSWER, Scope.RULES_WRITE}), "", 0)
PATHS = ("a", "b", "c")
STRICT = {"allow": 0, "ask": 1, "deny": 2}
EXAMPLES = rounds(12, 50)
CALLS_IN_ALL = rounds(100, 1000)

some_paths = st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True)
patterns = st.sampled_from(("*", *PATHS))
actions = st.sampled_from([Action.ALLOW, Action.ASK, Action.ASK, Action.DENY])
some_rules = st.lists(st.tuples(patterns, actions), max_size=3)
sessions = st.sampled_from(["default", "trusted", "untrusted"])
Written = tuple[str, Action]


@dataclass
class Expected:
    """What the model knows of a call: how it ended, or what it is asked for."""

    id: str
    session: str
    paths: list[str]
    text: str
    end: str | None = None
    asked: list[str] = field(default_factory=list)
    approved: set[str] = field(default_factory=set)
    is_seen: bool = False


@dataclass
class Model:
    """The rules of the house, said as plainly as can be."""

    configuration: list[Written] = field(default_factory=list)
    sessions: dict[str, list[Written]] = field(default_factory=dict)
    everybodys: dict[str, Written] = field(default_factory=dict)
    own: dict[str, Written] = field(default_factory=dict)
    answers: dict[str, list[Written]] = field(default_factory=dict)

    def says(self, session: str, path: str) -> str:
        layers = [
            (self.configuration, "decides"),
            (list(self.everybodys.values()), "decides"),
            (list(self.own.values()), "loosens"),
            (self.sessions.get(session, []), "loosens" if session == "trusted" else "tightens"),
            (self.answers.get(session, []), "loosens"),
        ]
        said = "allow"
        for written, power in layers:
            hits = [str(action) for pattern, action in written if pattern in ("*", path)]
            if hits and (
                power == "decides" or STRICT[hits[-1]] > STRICT[said] or (power == "loosens" and said == "ask")
            ):
                said = hits[-1]
        return said

    def judge(self, call: Expected) -> None:
        """Where the call stands under the rules of now."""
        if call.end is not None:
            return
        said = {path: self.says(call.session, path) for path in call.paths}
        wanted = [path for path in call.paths if said[path] == "ask" and path not in call.approved]
        if "deny" in said.values():
            call.end = "PermissionDenied"
        elif not wanted:
            call.end = "completed"
        elif not set(wanted) <= set(call.asked):
            call.asked = wanted


class ServiceMachine(RuleBasedStateMachine):
    calls_made: ClassVar[int] = 0
    ends: ClassVar[Counter[str]] = Counter()
    empty_database: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.toys = Toys()
        self.crib = Crib(copy_database(self.empty_database, self.folder / "data"), self.toys)
        self.model = Model()
        self.calls: dict[str, Expected] = {}
        self.numbers = count()

    def teardown(self) -> None:
        self.run(self.finish())
        self.loop.close()
        shutil.rmtree(self.folder)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(configuration=some_rules, trusted=some_rules, untrusted=some_rules)
    def open(self, configuration: list[Written], trusted: list[Written], untrusted: list[Written]) -> None:
        self.model.configuration = configuration
        self.model.sessions = {"trusted": trusted, "untrusted": untrusted}
        self.crib.settings["rules"] = [
            RuleSetting(permission="edit", pattern=pattern, action=action) for pattern, action in configuration
        ]
        self.run(self.crib.open())
        self.sessions = {
            id: Session(
                "ada",
                id,
                rules=tuple(Rule("edit", *one) for one in self.model.sessions.get(id, [])),
                is_trusted=id == "trusted",
            )
            for id in ("default", "trusted", "untrusted")
        }
        self.run(self.keep_sessions())

    @rule(wishes=st.lists(st.tuples(some_paths, sessions), min_size=2, max_size=6))
    def submit(self, wishes: list[tuple[list[str], str]]) -> None:
        for paths, session in wishes:
            call = self.submit_one(paths, session)
            self.model.judge(call)

    @rule(paths=some_paths, session=sessions)
    def submit_impatiently(self, paths: list[str], session: str) -> None:
        """One whose ask nobody has time to answer."""
        call = self.submit_one(paths, session, ask_timeout=0.001)
        self.model.judge(call)
        call.end = call.end or "AskExpired"

    @rule(paths=some_paths, session=sessions)
    def submit_unattended(self, paths: list[str], session: str) -> None:
        call = self.submit_one(paths, session, on_ask="deny")
        self.model.judge(call)
        call.end = call.end or "PermissionDenied"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), decision=st.sampled_from(list(Decision)))
    def answer(self, data: st.DataObject, decision: Decision) -> None:
        call = data.draw(st.sampled_from(self.waiting))
        ask = self.run(self.ask_of(call))
        self.run(self.crib.services.asks.answer(ask, Answer(decision), PERSON))
        if decision is Decision.DENY:
            call.end = "PermissionDenied"
            return
        call.approved |= set(call.asked)
        if decision is Decision.ALLOW_ALWAYS:
            written = self.model.answers.setdefault(call.session, [])
            written.extend((path, Action.ALLOW) for path in call.asked)
        self.judge_all()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def answer_twice_at_once(self, data: st.DataObject) -> None:
        """The first counts, the other hears that it came too late."""
        call = data.draw(st.sampled_from(self.waiting))
        ask = self.run(self.ask_of(call))
        said = self.run(self.answer_both(ask))
        assert [type(one) for one in said] == [Ask, AskEnded]
        call.end = "PermissionDenied"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.waiting))
        live = self.crib.services.dispatcher.live_calls.get(call.id)
        assert live is not None
        self.run(self.crib.cancel(live))
        call.end = "Canceled"

    @rule(pattern=patterns, action=actions, is_everybodys=st.booleans())
    def write_rule(self, pattern: str, action: Action, is_everybodys: bool) -> None:
        id = f"rule_{next(self.numbers):04d}"
        owner, written = (GLOBAL_PRINCIPAL, self.model.everybodys) if is_everybodys else ("ada", self.model.own)
        kept = StoredRule(id=id, principal=owner, rule=Rule("edit", pattern, action), scope=RuleScope.GLOBAL)
        self.run(self.crib.services.rules.add(kept))
        written[id] = (pattern, action)
        self.judge_all()

    @precondition(lambda self: self.model.everybodys or self.model.own)
    @rule(data=st.data())
    def revoke_rule(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from([*self.model.everybodys, *self.model.own]))
        assert self.run(self.crib.services.rules.drop(id))
        self.model.everybodys.pop(id, None)
        self.model.own.pop(id, None)
        self.judge_all()

    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        self.settle()
        self.run(self.crib.crash() if is_crash else self.crib.close())
        self.run(self.crib.open())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def expire_while_down(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.waiting))
        self.settle()
        self.run(self.crib.crash())
        self.crib.change("UPDATE asks SET expires_at = created_at + 1 WHERE call = ? AND status = 'open'", call.id)
        self.run(self.crib.open())
        call.end = "AskExpired"

    @invariant()
    def is_as_the_model_says(self) -> None:
        self.settle()
        done = sorted(call.text for call in self.calls.values() if call.end == "completed")
        assert sorted(self.toys.notes) == done, "no side effect without permission, none twice, none missing"

    @property
    def waiting(self) -> list[Expected]:
        return [call for call in self.calls.values() if call.end is None]

    def submit_one(self, paths: list[str], session: str, **more: Any) -> Expected:
        text = f"text {next(self.numbers)}"

        async def submit() -> str:
            request = self.crib.request("act", {"paths": paths, "text": text}, **more)
            live = self.crib.services.dispatcher.submit(request, self.sessions[session], key=None)
            await live.wait_open()
            return live.call.id

        id = self.run(submit())
        self.calls[id] = call = Expected(id, session, paths, text)
        type(self).calls_made += 1
        return call

    def judge_all(self) -> None:
        for call in self.calls.values():
            self.model.judge(call)

    def settle(self) -> None:
        """Wait until every call is where the model has it; if one never gets there, this fails."""
        if self.crib.is_open:
            for call in self.calls.values():
                if not call.is_seen:
                    self.run(self.arrive(call))
                call.is_seen = call.end is not None

    async def arrive(self, call: Expected) -> None:
        live = self.crib.services.dispatcher.live_calls.get(call.id)
        if call.end is None:
            assert live is not None, f"{call} has ended"
            await until(
                lambda: (
                    live.approval.ask is not None and [need.pattern for need in live.approval.ask.needs] == call.asked
                )
            )
            await until(lambda: live.call.waiting is not None and live._is_interruptible)
            return
        if live is not None:
            await until(lambda: live.is_done)
        status, code = self.crib.end(call.id)
        assert (code or status) == call.end, call

    async def ask_of(self, call: Expected) -> Ask:
        live = self.crib.services.dispatcher.live_calls.get(call.id)
        assert live is not None
        assert live.approval.ask is not None
        return live.approval.ask

    async def answer_both(self, ask: Ask) -> list[Any]:
        answers = [Answer(Decision.DENY), Answer(Decision.ALLOW_ONCE)]
        answering = [self.crib.services.asks.answer(ask, answer, PERSON) for answer in answers]
        return await asyncio.gather(*answering, return_exceptions=True)

    async def keep_sessions(self) -> None:
        """In the store, where a resumed call finds its session."""
        for session in self.sessions.values():
            await self.crib.services.writer.submit(partial(stored_sessions.add, session=session))

    async def finish(self) -> None:
        """Whatever still waits is refused; then every call has one end, and every ask too."""
        for call in self.waiting:
            await self.crib.services.asks.answer(await self.ask_of(call), Answer(Decision.DENY), PERSON)
            call.end = "PermissionDenied"
        for call in self.calls.values():
            await self.arrive(call)
            self.ends[call.end or ""] += 1
        assert self.crib.rows("SELECT * FROM calls WHERE ended_at IS NULL") == []
        assert self.crib.rows("SELECT * FROM asks WHERE ended_at IS NULL OR status = 'open'") == []
        await self.crib.close()


@pytest.fixture
def counted(empty_database: Path) -> Iterator[None]:
    ServiceMachine.empty_database = empty_database
    ServiceMachine.calls_made, ServiceMachine.ends = 0, Counter()
    yield
    print(f"\n{ServiceMachine.calls_made} calls: {dict(ServiceMachine.ends)}")  # noqa: T201
    assert ServiceMachine.calls_made >= CALLS_IN_ALL
    assert set(ServiceMachine.ends) == {"completed", "PermissionDenied", "AskExpired", "Canceled"}


@pytest.mark.sampled
@pytest.mark.usefixtures("counted")
def test_calls_end_as_a_simple_model_says() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        seed(1)(ServiceMachine),  # with which the sample has calls of every end
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=checks,
        ),
    )
