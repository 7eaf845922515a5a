"""Results that clients post for the calls they run themselves."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from app.api.auth import Services
from app.api.http.problems import Problem
from app.core.calls import Call, Status
from app.core.errors import CallError, ToolUnavailable
from app.core.results import Attachment, Result
from app.dispatch.live_calls import LiveCall, Suspended

Code = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_:.-]{0,63}$")]
Url = Annotated[str, StringConstraints(pattern=r"^(data:|https?://)")]
ALREADY_POSTED = "The result of this call was posted already; the first one stands."
STOPPING = "The service is stopping; post the result again later."


class PostedAttachment(BaseModel, extra="forbid"):
    """A file that goes along with a result."""

    type: Literal["file"] = Field(default="file", description="Always `file`.")
    mime: str = Field(min_length=1, max_length=256, description="Its media type.", examples=["image/png"])
    filename: str | None = Field(default=None, max_length=1024, description="Its name, if it has one.")
    url: Url = Field(description="A data URL or an HTTP URL.")


class PostedError(BaseModel, extra="forbid"):
    """Why the client could not run it, in a sentence the model can act on."""

    code: Code | None = Field(
        default=None, description="A stable name; by default `ToolUnavailable`.", examples=["ENOENT"]
    )
    message: str = Field(min_length=1, max_length=16_384, description="One sentence for the model.")


class ResultRequest(BaseModel, extra="forbid", strict=True):
    """The result of a call that the client ran. With an `error` the call fails, and the rest is its partial result."""

    output: str | None = Field(default=None, description="What the model reads.", examples=["12 °C, rain"])
    title: str | None = Field(default=None, max_length=1024, description="A short line for people.")
    metadata: dict[str, Any] | None = Field(default=None, description="Facts for the frontend.")
    structured: Any = Field(default=None, description="The result as data.")
    attachments: list[PostedAttachment] | None = Field(default=None, max_length=64, description="Files that go along.")
    error: PostedError | None = Field(default=None, description="Why it failed, if it did.")

    def outcome(self) -> Result | CallError:
        """The result or error the call ends with."""
        has_result = bool(self.model_fields_set - {"error"})
        result = Result(
            output=self.output or "",
            title=self.title or "",
            metadata=self.metadata or {},
            attachments=tuple(Attachment(**file.model_dump()) for file in self.attachments or ()),
            structured=self.structured,
        )
        if self.error is None:
            return result
        failed = ToolUnavailable if self.error.code in (None, ToolUnavailable.code) else CallError
        error = failed(self.error.message, result=result if has_result else None)
        error.code = self.error.code or error.code
        return error


def take_result(services: Services, call: Call, result: ResultRequest) -> LiveCall:
    """End a call that its client runs with this result. `call` is its stored record."""
    live = services.dispatcher.live_calls.get(call.id)
    if call.status is Status.RUNNING and call.deadline is None:
        raise Problem(409, "NotClientRun", f"{call.tool} is run by the service; clients cannot post its result.")
    if call.status is Status.PENDING:
        raise Problem(409, "CallNotRunning", "This call does not run yet; post its result when it does.")
    if live is None or isinstance(live.stop, Suspended):
        raise _not_accepted(services, call)
    if not live.answer(result.outcome()):
        raise Problem(
            409, "CallEnded", ALREADY_POSTED if live.stop is None else f"This call was stopped: {live.stop.message}"
        )
    return live


def _not_accepted(services: Services, call: Call) -> Problem:
    """It has ended, maybe just now, or it continues after the next start."""
    if not call.is_final and services.dispatcher.live_calls.is_draining:
        return Problem(503, "Stopping", STOPPING, {"Retry-After": "5"})
    return Problem(409, "CallEnded", "This call has ended; its result stays as it is.")
