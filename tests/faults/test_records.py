"""The checks of these tests, checked: each defect, planted into sound records, is seen."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

from tests.faults.records import Acknowledged, broken_promises
from tests.faults.services import Service
from tests.faults.wires import wired

pytestmark = pytest.mark.faults

Plant = Callable[[sqlite3.Connection, list[str], Acknowledged], None]


def lose_an_event(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) / 2 FROM events)")


def lose_the_last_event(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")


def lose_a_call(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM calls WHERE id = (SELECT min(id) FROM calls)")


def leave_one_running(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE calls SET status = 'running' WHERE id = (SELECT min(id) FROM calls)")


def end_one_twice(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    columns = "type, call, principal, session, at, data"
    last = "SELECT * FROM events WHERE seq = (SELECT max(seq) FROM events)"
    db.execute(f"INSERT INTO events (seq, {columns}) SELECT seq + 1, {columns} FROM ({last})")
    db.execute("UPDATE counters SET value = value + 1 WHERE name = 'event_seq'")


def change_a_result(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE calls SET result = replace(result, 't', 'x') WHERE id = (SELECT min(id) FROM calls)")


def act_twice(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    effects.append(effects[0])


def never_act(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    effects.pop()


def act_unrecorded(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    effects.append("from nowhere")


def answer_a_key_with_another_call(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    first, second = list(told.calls)[:2]
    told.note(told.calls[first], told.tokens[first], "one key")
    told.note(told.calls[second], told.tokens[second], "one key")


def tell_another_end(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    id, call = next(iter(told.calls.items()))
    told.note(call | {"status": "error"}, told.tokens[id])


PLANTS: dict[Plant, str] = {
    lose_an_event: "the event sequence has holes",
    lose_the_last_event: "the counter is at",
    lose_a_call: "was acknowledged and is lost",
    leave_one_running: "is still running",
    end_one_twice: "lived ['pending', 'running', 'completed', 'completed']",
    change_a_result: "and is stored as",
    act_twice: "happened 2 times",
    never_act: "its side effect happened 0 times",
    act_unrecorded: "belongs to no recorded call",
    answer_a_key_with_another_call: "and then call_",
    tell_another_end: "was told otherwise later",
}


async def test_the_checks_bite(service: Service, tmp_path: Path) -> None:
    async with wired(service.port) as wire:
        calls = [(await wire.call({"tool": "append", "arguments": {"token": f"t{n}"}})).body for n in range(4)]
    service.terminate()
    told = Acknowledged()
    for call in calls:
        told.note(call, call["arguments"]["token"])
    assert broken_promises(service.database, service.effects, told) == []

    for plant, sentence in PLANTS.items():
        spoiled, effects, heard = tmp_path / "spoiled.db", service.effects, deepcopy(told)
        shutil.copy(service.database, spoiled)
        with closing(sqlite3.connect(spoiled)) as db, db:
            plant(db, effects, heard)
        found = broken_promises(spoiled, effects, heard)
        assert any(sentence in line for line in found), (plant, found)
