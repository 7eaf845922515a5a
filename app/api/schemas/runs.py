"""Requests and responses about runs and dialects."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.create_call import DEFAULT_WAIT, MAX_WAIT
from app.api.schemas.views import CallView

MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_b7Kq2",
            "type": "function",
            "function": {"name": "read_file", "arguments": '{"file_path": "hello.txt"}'},
        }
    ],
}


class RunView(BaseModel):
    """A model's message that was run."""

    id: str = Field(description="The run's id.", examples=["run_06605af1f1f7394295dc6875"])
    dialect: str = Field(description="The dialect the message was read in.", examples=["openai-chat"])
    append: list[dict[str, Any]] = Field(
        description="What to append to the conversation; empty until every call has ended."
    )
    calls: list[CallView] = Field(description="The calls, in the order of the message.")
    pending: list[str] = Field(description="The ids of calls that have not ended.")
    blocked: bool = Field(description="Whether a person denied one of them, so that an agent loop may stop.")
    previous_response_id: str | None = Field(
        default=None,
        description="openai-responses: the response `append` belongs to, if the whole response was sent.",
    )


class ModelCallView(BaseModel):
    """A call as a model wrote it."""

    id: str | None = Field(description="The provider's id; null when it gives none.")
    type: Literal["function", "custom", "apply_patch", "shell", "local_shell", "computer", "tool_search"] = Field(
        description="A function, free text, or one of the provider's own tools."
    )
    name: str = Field(description="The tool's name.", examples=["read_file"])
    arguments: dict[str, Any] | None = Field(default=None, description="Its arguments, if they could be read.")
    input: str | None = Field(default=None, description="Its free text.")
    arguments_error: str | None = Field(default=None, description="Why its arguments cannot be read.")
    raw_arguments: str | None = Field(default=None, description="The unreadable arguments.")
    repaired: bool = Field(default=False, description="Whether the arguments had to be repaired.")
    namespace: str | None = Field(default=None, description="The tool's namespace.")
    caller: dict[str, Any] | None = Field(default=None, description="What made the call, if not the model itself.")
    toolset: str | None = Field(default=None, description="The provider's toolset that it belongs to.")
    sub_index: int | None = Field(default=None, description="Its index in a wrapper of several calls.")


class ParsedView(BaseModel):
    """The calls of a model's message."""

    dialect: str = Field(description="The dialect it was read in.")
    calls: list[ModelCallView] = Field(description="The calls, in order.")
    remaining_text: str = Field(description="The model's other text.")


class DialectView(BaseModel):
    """A dialect: a provider's format for tools, calls and results."""

    name: str = Field(description="Its name in `format=` and in the path.", examples=["openai-chat"])
    title: str = Field(description="The provider or product.")
    alias_of: str | None = Field(description="The dialect it is a variant of; null for a dialect of its own.")
    native_tools: bool = Field(description="Whether calls are structured, or parsed from text.")
    strict: bool = Field(description="Whether schemas can be enforced.")
    images: bool = Field(description="Whether results can have images; else they have a note with a URL.")
    files: bool = Field(description="The same for other files.")
    parallel: bool = Field(description="Whether one message can have several calls.")
    freeform: bool = Field(description="Whether tools can take free text.")
    builtins: list[str] = Field(description="The provider's own tools that Toolcrib runs.")
    streams: bool = Field(description="Whether the chunks of a finished stream are read.")
    note: str | None = Field(description="A note.")


class RunOptions(BaseModel, frozen=True):
    """The query of `POST /v1/run/{name}`. Defaults are those of the key and the service."""

    wait: float = Field(
        default=DEFAULT_WAIT,
        ge=0,
        le=MAX_WAIT,
        allow_inf_nan=False,
        description="Seconds to wait for the end of all calls; 0 answers as soon as they are recorded.",
    )
    replay: Literal["outputs", "full"] = Field(
        default="outputs",
        description="openai-responses: append only the outputs, or the whole output list before them.",
    )
    timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="Seconds each tool may run, instead of its own limit."
    )
    ask_timeout: float | None = Field(
        default=None, gt=0, le=604_800, description="Seconds a person has to answer what a call asks."
    )
    on_ask: Literal["wait", "deny"] | None = Field(
        default=None, description="`deny`: what would be asked is denied without asking."
    )
    cancel_on_disconnect: bool = Field(
        default=False, description="Cancel the calls when the connection that made them closes."
    )

    def call_options(self) -> dict[str, Any]:
        """The fields of every call's request."""
        return {
            "timeout": self.timeout,
            "ask_timeout": self.ask_timeout,
            "on_ask": self.on_ask,
            "cancel_on_disconnect": self.cancel_on_disconnect,
        }


MESSAGE_BODY = (
    "The whole response of the provider, the assistant's message, the bare list of its calls, or the chunks of a "
    "finished stream; for the text dialects `{text}`."
)
PENDING: dict[str, Any] = {"model": RunView, "description": "Some calls have not ended: request it again."}
