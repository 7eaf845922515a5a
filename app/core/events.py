"""Events: what happened, in the order it was committed.

An event about a call's status has no data of its own: it is a view of fields
of the call's row that do not change any more. So a result is stored once, and a
replayed event equals the live one byte for byte.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.core.calls import Call, raw
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import dumps


class EventType(StrEnum):
    CALL_PENDING = "call.pending"
    CALL_RUNNING = "call.running"
    CALL_WAITING = "call.waiting"
    CALL_PROGRESS = "call.progress"
    CALL_OUTPUT = "call.output"
    CALL_HOOK = "call.hook"
    CALL_COMPLETED = "call.completed"
    CALL_ERROR = "call.error"
    ASK_OPENED = "ask.opened"
    ASK_ANSWERED = "ask.answered"
    ASK_EXPIRED = "ask.expired"
    PLAN_UPDATED = "plan.updated"
    TERMINAL_OPENED = "terminal.opened"
    TERMINAL_OUTPUT = "terminal.output"
    TERMINAL_CLOSED = "terminal.closed"
    NETWORK_DECISION = "network.decision"
    SESSION_CHANGED = "session.changed"
    MCP_STATUS = "mcp.status"
    TOOLS_CHANGED = "tools.changed"
    LAGGED = "lagged"


FINAL = frozenset({EventType.CALL_COMPLETED, EventType.CALL_ERROR})
VIEWS = FINAL | {EventType.CALL_PENDING, EventType.CALL_RUNNING}
"""The types whose data comes from the call."""
ASKS = frozenset({EventType.ASK_OPENED, EventType.ASK_ANSWERED, EventType.ASK_EXPIRED})


@dataclass(slots=True)
class Event:
    seq: int
    type: EventType
    call: str | None
    principal: str
    session: str
    at: int
    data: str | None = None

    def view(self, call: Call | None) -> dict[str, Any]:
        """The event as API clients see it. `call` is needed for the types in `VIEWS`."""
        return {
            "seq": self.seq,
            "type": self.type.value,
            "call": self.call,
            "session": self.session,
            "at": rfc3339(self.at),
            "data": _data_of(self.type, call) if call and self.type in VIEWS else raw(self.data),
        }


def _data_of(type: EventType, call: Call) -> dict[str, Any]:
    data: dict[str, Any] = {"tool": call.tool, "call_id": call.call_id, "message_id": call.message_id}
    if type is EventType.CALL_PENDING:
        return data | {"parent": call.parent, "arguments": raw(call.arguments), "input": call.input}
    if type in FINAL:
        return data | {"result": raw(call.result), "error": raw(call.error), "duration_ms": call.duration_ms}
    if call.deadline is None:
        return data
    arguments = raw(call.effective or call.arguments)  # hooks may have changed them
    return data | {"client": True, "deadline": rfc3339(call.deadline), "arguments": arguments}


def encode(view: dict[str, Any]) -> bytes:
    """A frame of a text/event-stream; clients resume by its id."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (view["seq"], view["type"].encode(), dumps(view))


def encode_passing(type: EventType, data: dict[str, Any]) -> bytes:
    """A frame that is not stored: it has no id, so clients resume before it."""
    return b"event: %b\ndata: %b\n\n" % (type.value.encode(), dumps(data))
