"""What must be true of a data directory, whatever happened to its services. Read straight from the file."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FINAL = ("completed", "error")
CHUNK = "progress: ä 漢 😀 {}\n"
CHUNKS = 5


@dataclass(slots=True)
class Acknowledged:
    """What clients were told, and therefore may rely on."""

    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    events: dict[int, bytes] = field(default_factory=dict)
    output: dict[str, bytes] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def note(self, call: dict[str, Any], token: str, key: str | None = None) -> None:
        """Keep an answer. One that says otherwise than an earlier one is a broken promise."""
        before = self.calls.get(call["id"])
        if before is not None and before["status"] in FINAL and shown(before) != shown(call):
            self.contradictions.append(f"{call['id']} had ended and was told otherwise later")
        if key is not None and self.keys.setdefault(key, call["id"]) != call["id"]:
            self.contradictions.append(f"key {key} gave {self.keys[key]} and then {call['id']}")
        self.calls[call["id"]] = call
        self.tokens[call["id"]] = token

    def hear(self, seq: int, frame: bytes) -> None:
        """Keep an event as it was told. Told again, it is the same to the byte."""
        if self.events.setdefault(seq, frame) != frame:
            self.contradictions.append(f"event {seq} was told as {self.events[seq]!r} and then as {frame!r}")

    def hear_output(self, call: str, offset: int, text: str) -> None:
        """Keep a piece of output as it was told; the pieces follow each other."""
        if offset != len(heard := self.output.get(call, b"")):
            self.contradictions.append(f"the output of {call} went on at {offset} after {len(heard)} bytes")
        self.output[call] = heard + text.encode()


def broken_promises(database: Path, effects: list[str], told: Acknowledged) -> list[str]:
    """Everything that is wrong, each in one sentence; of a service that has settled nothing may be."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        calls = {row["id"]: row for row in db.execute("SELECT * FROM calls")}
        return [
            *_unsound(db),
            *_gaps(db),
            *_bad_lives(db, calls),
            *_left_open(calls.values()),
            *_lost(calls, told),
            *_unheard(db, told),
            *_bad_output(calls, stored_outputs(db), told),
            *_run_twice(calls.values(), effects),
            *_bad_asks(db, calls),
            *_unasked(db, calls.values(), effects),
            *_made_twice(calls.values()),
            *told.contradictions,
        ]


def open_calls(database: Path) -> list[tuple[str, str, int]]:
    """Id, status and attempt of what has not ended."""
    query = "SELECT id, status, attempt FROM calls WHERE status NOT IN ('completed', 'error')"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def left_running(database: Path) -> list[str]:
    """Right after a start: what ran before has ended; only what was pending may run now, for the first time."""
    return [id for id, status, attempt in open_calls(database) if status != "pending" and attempt == 1]


def last_seq(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])


def shown(call: dict[str, Any]) -> tuple[Any, ...]:
    """The part of a call that does not change once it has ended."""
    return call["status"], call["result"], call["error"], call["ended_at"], call["duration_ms"]


def _unsound(db: sqlite3.Connection) -> Iterator[str]:
    answer = [row[0] for row in db.execute("PRAGMA integrity_check")]
    if answer != ["ok"]:
        yield f"the database is damaged: {answer}"


def _gaps(db: sqlite3.Connection) -> Iterator[str]:
    """The sequence is 1..N without a hole, and the counter knows N."""
    count, first, last = db.execute("SELECT count(*), min(seq), max(seq) FROM events").fetchone()
    if count and (first, last) != (1, count):
        yield f"the event sequence has holes: {count} events from {first} to {last}"
    counter = db.execute("SELECT value FROM counters WHERE name = 'event_seq'").fetchone()[0]
    if counter != (last or 0):
        yield f"the counter is at {counter}, the last event is {last}"


def _bad_lives(db: sqlite3.Connection, calls: dict[str, sqlite3.Row]) -> Iterator[str]:
    """Each call: one pending first, at most one running, one end last, and the row says the same."""
    lives: dict[str, list[str]] = {id: [] for id in calls}
    for call, type in db.execute("SELECT call, type FROM events WHERE call IS NOT NULL ORDER BY seq"):
        if call in lives:
            lives[call].append(type.removeprefix("call."))
        else:
            yield f"{call} has a {type} event but is not there"
    for id, life in lives.items():
        seen = Counter(life)
        ends = seen["completed"] + seen["error"]
        if seen["pending"] != 1 or seen["running"] > 1 or ends > 1:
            yield f"{id} lived {life}"
        elif life[0] != "pending" or (ends and life[-1] != calls[id]["status"]):
            yield f"{id} is {calls[id]['status']} and lived {life}"
        elif seen["completed"] and not seen["running"]:
            yield f"{id} completed without having run"


def _left_open(calls: Iterable[sqlite3.Row]) -> Iterator[str]:
    for row in calls:
        if row["status"] not in FINAL:
            yield f"{row['id']} is still {row['status']}"
        elif (row["status"] == "error") != (row["error"] is not None):
            yield f"{row['id']} is {row['status']} and its error is {row['error']}"


def _lost(calls: dict[str, sqlite3.Row], told: Acknowledged) -> Iterator[str]:
    """What was acknowledged is there, and an end that was told is the end that is stored."""
    for id, call in told.calls.items():
        row = calls.get(id)
        if row is None:
            yield f"{id} was acknowledged and is lost"
            continue
        if token_of(row) != told.tokens[id]:
            yield f"{id} was acknowledged for another request"
        if call["status"] in FINAL and _stored(row) != (call["status"], call["result"], call["error"]):
            yield f"{id} was told as {call['status']} {call['result']} and is stored as {_stored(row)}"


def _stored(row: sqlite3.Row) -> tuple[str, Any, Any]:
    result, error = (row[name] and json.loads(row[name]) for name in ("result", "error"))
    return row["status"], result, error


def stored_outputs(db: sqlite3.Connection) -> dict[str, list[sqlite3.Row]]:
    """The rows of output by call, in order."""
    found: dict[str, list[sqlite3.Row]] = {}
    for row in db.execute("SELECT * FROM outputs ORDER BY call, start"):
        found.setdefault(row["call"], []).append(row)
    return found


def token_of(row: sqlite3.Row) -> str:
    """What tells the requests of these tests apart; a tool that takes no token has it as its caller's id."""
    token: str = row["call_id"] or json.loads(row["arguments"])["token"]
    return token


def _unheard(db: sqlite3.Connection, told: Acknowledged) -> Iterator[str]:
    """What subscribers were told is in the log."""
    stored = {seq: (type, call) for seq, type, call in db.execute("SELECT seq, type, call FROM events")}
    for seq, frame in told.events.items():
        type, call = stored.get(seq, (None, None))
        if type is None:
            yield f"event {seq} was told and is not there"
        elif f"event: {type}\n".encode() not in frame or (call or "").encode() not in frame:
            yield f"event {seq} was told as {frame!r} and is {type} of {call}"


def _bad_output(
    calls: dict[str, sqlite3.Row], stored: dict[str, list[sqlite3.Row]], told: Acknowledged
) -> Iterator[str]:
    """Output is stored without a hole, is what the tool said, keeps what was told, and is in the result."""
    for id, rows in stored.items():
        stops = [0, *(row["stop"] for row in rows)]
        if any(row["start"] != stop for row, stop in zip(rows, stops, strict=False)):
            yield f"the output of {id} has holes: {[(row['start'], row['stop']) for row in rows]}"
    for id, row in calls.items():
        kept = b"".join(piece["data"] for piece in stored.get(id, []))
        if not kept.startswith(told.output.get(id, b"")):
            yield f"{id} told {told.output[id]!r} and kept {kept!r}"
        if row["tool"] == "slow":
            yield from _bad_words(row, kept)


def _bad_words(row: sqlite3.Row, kept: bytes) -> Iterator[str]:
    """A call of `slow`, of which is known what it says: completed, it has said all; stopped, a part of it."""
    said = words(json.loads(row["arguments"]).get("chunks", CHUNKS))
    result = row["result"] and json.loads(row["result"])
    if not said.startswith(kept) or (row["status"] == "completed" and kept != said):
        yield f"{row['id']} is {row['status']}, said {said!r} and kept {kept!r}"
    if row["status"] in FINAL and ((result and result["output"]) or "").encode() != kept:
        yield f"{row['id']} kept {kept!r}, and its result is {result}"


def words(chunks: int) -> bytes:
    """What `slow` says."""
    return "".join(CHUNK.format(number) for number in range(chunks)).encode()


def _run_twice(calls: Iterable[sqlite3.Row], effects: list[str]) -> Iterator[str]:
    """A mark is left at most once, by a call we know; a call that completed has left its mark."""
    marks = Counter(effects)
    for token, count in marks.items():
        if count > 1:
            yield f"the side effect {token} happened {count} times"
    known = set()
    for row in calls:
        if row["tool"] in ("append", "turn", "careful"):
            token = token_of(row)
            known.add(token)
            if row["status"] == "completed" and marks[token] != 1:
                yield f"{row['id']} completed and its side effect happened {marks[token]} times"
            if marks[token] and row["started_at"] is None:
                yield f"{row['id']} had its side effect without being started"
    for token in marks.keys() - known:
        yield f"the side effect {token} belongs to no recorded call"


def _bad_asks(db: sqlite3.Connection, calls: dict[str, sqlite3.Row]) -> Iterator[str]:
    """Each ask: opened once, ended once, as its row says; none is open when its call has ended."""
    lives: dict[str, list[str]] = {}
    for type, data in db.execute("SELECT type, data FROM events WHERE type LIKE 'ask.%' ORDER BY seq"):
        lives.setdefault(json.loads(data)["id"], []).append(type.removeprefix("ask."))
    for id, call, status in db.execute("SELECT id, call, status FROM asks"):
        life = lives.pop(id, [])
        if life != ["opened", *([] if status == "open" else [status])]:
            yield f"{id} is {status} and lived {life}"
        if status == "open" and (call not in calls or calls[call]["status"] in FINAL):
            yield f"{id} is open, and its call {call} has ended"
    for id in lives:
        yield f"{id} was told of and is not there"


def _unasked(db: sqlite3.Connection, calls: Iterable[sqlite3.Row], effects: list[str]) -> Iterator[str]:
    """What has to be asked has its side effect only when somebody has said yes."""
    answers = db.execute("SELECT call, answer FROM asks WHERE status = 'answered'")
    allowed = {call for call, answer in answers if json.loads(answer)["decision"] != "deny"}
    for row in calls:
        if row["tool"] == "careful" and token_of(row) in effects and row["id"] not in allowed:
            yield f"{row['id']} had its side effect, and nobody had allowed it"


def _made_twice(calls: Iterable[sqlite3.Row]) -> Iterator[str]:
    """Every request of these tests has a token of its own; a repeated one has its key, and makes no second call."""
    tokens = Counter(token_of(row) for row in calls)
    for token, count in tokens.items():
        if count > 1:
            yield f"{count} calls were made for the one request {token}"
