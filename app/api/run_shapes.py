"""Shapes of runs and dialects, for the OpenAPI document and for typed clients."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api import run_examples as examples
from app.api.shapes import CallView


class RunView(BaseModel, json_schema_extra={"examples": [examples.RUN]}):
    """A model's message that was run."""

    id: str = Field(description="The run's id.", examples=["run_06605af1f1f7394295dc6875"])
    dialect: str = Field(description="The dialect the message was read in.", examples=["openai-chat"])
    append: list[dict[str, Any]] = Field(
        description="What to append to the conversation, as it is; empty until every call has ended."
    )
    calls: list[CallView] = Field(description="The calls, in the order of the message.")
    pending: list[str] = Field(description="The ids of calls that have not ended.")
    blocked: bool = Field(description="Whether a person said no to one of them, so that a loop may stop.")
    previous_response_id: str | None = Field(
        default=None, description="openai-responses: the response that `append` goes with, given the whole response."
    )


class ModelCallView(BaseModel, json_schema_extra={"examples": [examples.MODEL_CALL]}):
    """A call as a model wrote it."""

    id: str | None = Field(description="The provider's id; null when it gives none.")
    type: Literal["function", "custom", "apply_patch", "shell", "local_shell", "computer", "tool_search"] = Field(
        description="A function, free text, or one of the provider's own tools."
    )
    name: str = Field(description="The tool it names.", examples=["read_file"])
    arguments: dict[str, Any] | None = Field(default=None, description="Its arguments, if they could be read.")
    input: str | None = Field(default=None, description="Its free text.")
    arguments_error: str | None = Field(default=None, description="Why its arguments cannot be read.")
    raw_arguments: str | None = Field(default=None, description="What was written then.")
    repaired: bool = Field(default=False, description="Whether what was written had to be mended to be read.")
    namespace: str | None = Field(default=None, description="The namespace it names the tool in.")
    caller: dict[str, Any] | None = Field(default=None, description="What made the call, if not the model itself.")
    toolset: str | None = Field(default=None, description="The provider's own set of tools it belongs to.")
    sub_index: int | None = Field(default=None, description="Its place in a wrapper that several calls came in.")


class ParsedView(BaseModel, json_schema_extra={"examples": [examples.PARSED]}):
    """What was found in a model's message."""

    dialect: str = Field(description="The dialect it was read in.")
    calls: list[ModelCallView] = Field(description="The calls, in order.")
    remaining_text: str = Field(description="What the model said besides.")


class DialectView(BaseModel, json_schema_extra={"examples": [examples.DIALECT]}):
    """How tools are spoken of, and by whom."""

    name: str = Field(description="What to put into `format=` and into the path.", examples=["openai-chat"])
    title: str = Field(description="Whose it is.")
    alias_of: str | None = Field(description="The dialect it is, with quirks of its own; null for a dialect.")
    native_tools: bool = Field(description="Whether calls are structured, or read out of the text.")
    strict: bool = Field(description="Whether schemas can be enforced.")
    images: bool = Field(description="Whether results can have images; else they are told of, with an address.")
    files: bool = Field(description="The same for other files.")
    parallel: bool = Field(description="Whether one message can have several calls.")
    freeform: bool = Field(description="Whether there are tools that take free text, for models that know it.")
    builtins: list[str] = Field(description="The provider's own tools that are run here.")
    streams: bool = Field(description="Whether the chunks of a finished stream are read.")
    note: str | None = Field(description="What else there is to know.")
