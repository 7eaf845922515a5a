"""Calls: one execution of a tool, from the request to its end."""

from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.core.sessions import DEFAULT_SESSION
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import Fragment

current_call: ContextVar[str | None] = ContextVar("current_call", default=None)
"""The call that the current task runs, for the log."""

CALLS_IN_SCOPE = "toolcrib.calls"
"""Key in the ASGI scope for the ids of the calls that a request belongs to, for the access log."""


def note_calls(scope: MutableMapping[str, Any], *ids: str) -> None:
    """Record that a request belongs to these calls."""
    recorded: list[str] | None = scope.get(CALLS_IN_SCOPE)
    if recorded is not None:
        recorded.extend(ids)


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"

    @property
    def is_final(self) -> bool:
        return self is Status.COMPLETED or self is Status.ERROR


class Waiting(StrEnum):
    """What an unfinished call waits for."""

    PERMISSION = "permission"
    INPUT = "input"
    GATE = "gate"
    QUEUE = "queue"


Label = Annotated[str, StringConstraints(min_length=1, max_length=256)]


_EXAMPLE = {"tool": "read_file", "arguments": {"file_path": "hello.txt"}, "call_id": "toolu_01"}


class CallRequest(BaseModel, extra="forbid", strict=True, json_schema_extra={"examples": [_EXAMPLE]}):
    """What a frontend asks for: one tool, and what to give it."""

    tool: Label = Field(description="Name of the tool, as listed by `GET /v1/tools`.", examples=["read_file"])
    arguments: dict[str, Any] | None = Field(
        default=None, description="Arguments for a tool that takes JSON.", examples=[{"file_path": "hello.txt"}]
    )
    input: str | None = Field(default=None, description="Text for a tool that takes free-form input.")
    session: Label | None = Field(
        default=None, description="Session to run in; otherwise the `Toolcrib-Session` header, otherwise `default`."
    )
    call_id: Label | None = Field(default=None, description="The model's own id of this call; kept and given back.")
    message_id: Label | None = Field(default=None, description="The model message this call came in.")
    timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="Seconds the tool may run, instead of its own limit."
    )
    ask_timeout: float | None = Field(
        default=None, gt=0, le=604_800, description="Seconds a person has to answer what this call asks."
    )
    on_ask: Literal["wait", "deny"] | None = Field(
        default=None,
        description="`deny`: end with PermissionDenied instead of waiting for a person. Otherwise as the key says.",
    )
    cancel_on_disconnect: bool = Field(
        default=False, description="Cancel the call when the connection that created it closes."
    )
    metadata: dict[str, Any] | None = Field(default=None, description="The caller's own facts; kept and given back.")


@dataclass(slots=True)
class Call:
    """The current state of a call. JSON fields hold the stored text, so that nothing is encoded twice.

    `key` is the id of the API key of the request. A call that the client runs has a `deadline` once it has started.
    """

    id: str
    principal: str
    tool: str
    created_at: int
    session: str = DEFAULT_SESSION
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None
    message_id: str | None = None
    parent: str | None = None
    metadata: str | None = None
    options: str | None = None
    status: Status = Status.PENDING
    waiting: Waiting | None = None
    result: str | None = None
    error: str | None = None
    sandbox: str | None = None
    effective: str | None = None
    attempt: int = 1
    started_at: int | None = None
    ended_at: int | None = None
    duration_us: int | None = None
    output_dropped: int = 0
    sealed: bytes | None = None
    key: str | None = None
    deadline: int | None = None

    @property
    def is_final(self) -> bool:
        return self.status.is_final

    def view(self) -> dict[str, Any]:
        """The call as API clients see it."""
        return {
            "id": self.id,
            "tool": self.tool,
            "session": self.session,
            "call_id": self.call_id,
            "message_id": self.message_id,
            "parent": self.parent,
            "status": self.status.value,
            "waiting": self.waiting and self.waiting.value,
            "arguments": raw(self.arguments),
            "input": self.input,
            "result": raw(self.result),
            "error": raw(self.error),
            "metadata": raw(self.metadata),
            "principal": self.principal,
            "sandbox": raw(self.sandbox),
            "created_at": rfc3339(self.created_at),
            "started_at": None if self.started_at is None else rfc3339(self.started_at),
            "ended_at": None if self.ended_at is None else rfc3339(self.ended_at),
            "duration_ms": self.duration_ms,
        }

    @property
    def duration_ms(self) -> float | None:
        return None if self.duration_us is None else self.duration_us / 1000


def raw(text: str | None) -> Fragment | None:
    """JSON text to be embedded unchanged into a larger JSON document."""
    return None if text is None else Fragment(text)
