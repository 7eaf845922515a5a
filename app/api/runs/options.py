"""How a run is wanted: what stands in the query beside the message."""

from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import QueryParams

from app.api.create_call import DEFAULT_WAIT, MAX_WAIT
from app.api.http.problems import invalid


class RunOptions(BaseModel, frozen=True):
    """Options of a run. What is not said is as the key and the service have it."""

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
        default=None, description="`deny`: nobody is asked, and what would be is denied."
    )
    cancel_on_disconnect: bool = Field(
        default=False, description="Cancel the calls when the connection that made them closes."
    )

    def each(self) -> dict[str, Any]:
        """What every call is asked with."""
        return {
            "timeout": self.timeout,
            "ask_timeout": self.ask_timeout,
            "on_ask": self.on_ask,
            "cancel_on_disconnect": self.cancel_on_disconnect,
        }


USUAL = RunOptions()


def read_options(query: bytes) -> RunOptions:
    if not query:
        return USUAL
    try:
        return RunOptions.model_validate(dict(QueryParams(query)))
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from None


def parameters() -> list[dict[str, Any]]:
    """The options as the OpenAPI document lists them."""
    properties = RunOptions.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, **_parameter(one)} for name, one in properties.items()]


def _parameter(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if name not in ("title", "description")}
    return {"description": schema["description"], "schema": {k: v for k, v in kept.items() if v is not None}}
