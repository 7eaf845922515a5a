"""What schemathesis must not do to itself: wait a minute for an answer, revoke the keys it asks with, or send many
bodies under one Idempotency-Key, which would keep all but the first from being looked at. And what it cannot know:
which asks are open, what kind of answer they take, and which files are there to be deleted."""

import json
import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis import Case, HookContext

KEPT_KEYS = os.environ["SCHEMATHESIS_KEPT_KEYS"].split()
ASKS: dict[str, str] = json.loads(Path(os.environ["SCHEMATHESIS_ASKS"]).read_text())
ASK = re.compile("ask_[0-9a-f]{24}")
ANSWER = "POST /v1/asks/{id}/answer"
ADD_SERVER = "POST /v1/mcp/servers"
DELETE_FILE = "DELETE /v1/sessions/{id}/files/{path}"
EXAMPLE_FILE = "hello.txt"
FILES = "/v1/sessions/{id}/files"
SERVERS = "/v1/mcp/servers"
LONGEST_WAIT = 600
LONGEST_SETTLE = 60
LONGEST_KEY = 256

unanswered = dict(ASKS)
spares, turns = count(), count()


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    longest = longest_wait(case)
    if longest and is_valid_wait(case.query.get("wait", longest), longest):
        case.query["wait"] = 1 if case.operation.path.startswith(FILES) else 0  # whose answer is what came of the call
    if case.method == "DELETE" and case.path_parameters.get("id") in KEPT_KEYS:
        case.path_parameters["id"] = "key_of_nobody"
    if case.operation.label == ANSWER:
        case.path_parameters["id"] = fitting_ask(case.path_parameters.get("id", ""), case.body)
    if case.operation.path.startswith(FILES) and next(turns) % 2:
        case.path_parameters["id"] = "default"  # of sessions that are not there, nothing can be learnt about files
    if case.operation.label == DELETE_FILE and case.path_parameters.get("path") == EXAMPLE_FILE:
        case.path_parameters["path"] = f"spare-{next(spares)}.txt"  # the example is needed by others
    if case.operation.label == ADD_SERVER and isinstance(case.body, dict):
        # A program is started for nobody here, and after that 403 no key would be tried any more.
        case.body = {name: value for name, value in case.body.items() if name != "command"}
    if 0 < len(key := case.headers.get("Idempotency-Key", "")) <= LONGEST_KEY:
        case.headers["Idempotency-Key"] = f"{case.id} {key}"[:LONGEST_KEY].strip()


def fitting_ask(asked: str, body: object) -> str:
    """For what looks like an ask: one that this answer is an answer to, each but once. Calls made by schemathesis may
    ask too, and of their asks it is not known what kind of answer they take."""
    if not ASK.fullmatch(asked):
        return asked
    form = next((name for name in ("decision", "action") if isinstance(body, dict) and name in body), None)
    return next((id for id in list(unanswered) if unanswered[id] == form and unanswered.pop(id)), "ask_of_nobody")


def longest_wait(case: Case[Any]) -> int:
    """How long an operation can be asked to wait; 0 if it cannot."""
    if not any(parameter.name == "wait" for parameter in case.operation.query):
        return 0
    return LONGEST_SETTLE if case.operation.path.startswith(SERVERS) else LONGEST_WAIT


def is_valid_wait(value: object, longest: int) -> bool:
    """One that is not valid is sent as it is, to be refused. A number may come as it is written in a query."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        return 0 <= float(value) <= longest
    except ValueError:
        return False


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """A header nobody documented is no violation: HTTP lets anybody send one, and the service must ignore it."""
    return "x-schemathesis-unknown-property" not in case.headers
