"""The checks of these tests, checked: each defect, planted into sound records, is seen."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path

from tests.faults.data_checks import Acknowledged, broken_promises, last_seq
from tests.faults.raw_sockets import streamed
from tests.faults.recording_client import actor, hear_until
from tests.faults.service_processes import Service

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


def forget_what_was_told(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    """As if the last transaction had been told and then not been committed."""
    db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    db.execute("UPDATE counters SET value = value - 1 WHERE name = 'event_seq'")


def tell_what_another_event_says(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE events SET type = 'call.waiting' WHERE seq = 2")


def tell_it_in_other_bytes(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    told.hear(1, told.events[1].replace(b"pending", b"Pending"))


def lose_the_first_output(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM outputs WHERE start = 0")


def lose_the_last_output(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM outputs WHERE start = (SELECT max(start) FROM outputs)")


def lose_all_output(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM outputs")


def keep_other_output(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE outputs SET data = CAST(replace(CAST(data AS TEXT), 'progress', 'PROGRESS') AS BLOB)")
    told.output.clear()


def interrupt_without_its_output(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE calls SET result = NULL WHERE error IS NOT NULL")


def tell_output_with_a_hole(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    call, heard = next(iter(told.output.items()))
    told.hear_output(call, len(heard) + 1, "more")


def act_without_a_yes(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE asks SET answer = replace(answer, 'allow_once', 'deny')")


def leave_an_ask_open(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE asks SET status = 'open'")


def lose_an_ask(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("DELETE FROM asks")


def end_an_ask_otherwise(db: sqlite3.Connection, effects: list[str], told: Acknowledged) -> None:
    db.execute("UPDATE asks SET status = 'expired'")


PLANTS: dict[Plant, str] = {
    lose_an_event: "the event sequence has holes",
    lose_the_last_event: "the counter is at",
    lose_a_call: "was acknowledged and is lost",
    leave_one_running: "is still running",
    end_one_twice: "'error', 'error']",
    change_a_result: "and is stored as",
    act_twice: "happened 2 times",
    never_act: "its side effect happened 0 times",
    act_unrecorded: "belongs to no recorded call",
    answer_a_key_with_another_call: "and then call_",
    tell_another_end: "was told otherwise later",
    forget_what_was_told: "was told and is not there",
    tell_what_another_event_says: "and is call.waiting of call_",
    tell_it_in_other_bytes: "and then as b'id: 1",
    lose_the_first_output: "has holes: [(",
    lose_the_last_output: "is completed, said b'progress",
    lose_all_output: "and kept b''",
    keep_other_output: "and kept b'PROGRESS",
    interrupt_without_its_output: "and its result is None",
    tell_output_with_a_hole: "went on at",
    act_without_a_yes: "and nobody had allowed it",
    leave_an_ask_open: "is open, and its call",
    lose_an_ask: "was told of and is not there",
    end_an_ask_otherwise: "is expired and lived ['opened', 'answered']",
}


async def test_the_checks_bite(service: Service, tmp_path: Path) -> None:
    told = await make_records(service)
    assert broken_promises(service.database, service.effects, told) == []

    for plant, sentence in PLANTS.items():
        spoiled, effects, heard = tmp_path / "spoiled.db", service.effects, deepcopy(told)
        shutil.copy(service.database, spoiled)
        with closing(sqlite3.connect(spoiled)) as db, db:
            plant(db, effects, heard)
        found = broken_promises(spoiled, effects, heard)
        assert any(sentence in line for line in found), (plant, found)


async def make_records(service: Service) -> Acknowledged:
    """Calls that leave marks, one that asks first, one that says something, and one interrupted while it does."""
    told = Acknowledged()
    async with actor(service.port, told) as act:
        for number in range(4):
            await act.call("append", f"t{number}")
        await act.until(lambda: act.heard("call.completed"))
        asking = await act.call("careful", "asked", wait=0)
        [ask] = await act.open_asks(1)
        await act.answer(ask, decision="allow")
        await act.wait_for(asking)
        await act.call("slow", "whole", chunks=3)
        stopped = await act.call("slow", "stopped", wait=0, chunks=500)
        await act.until(lambda: stopped["id"] in told.output)
        service.kill()
    service.start()
    async with streamed(service.port, "/v1/events", after=0) as stream:
        await hear_until(stream, told, last_seq(service.database))
    service.terminate()
    return told
