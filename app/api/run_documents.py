"""The OpenAPI entry of `POST /v1/run/{name}`, kept by hand as that of the hot route is."""

from typing import Any

from app.api.run_examples import MESSAGE
from app.api.run_options import parameters
from app.api.run_shapes import RunView
from app.providers.table import AUTO, NAMES

MESSAGE_BODY = (
    "The whole response of the provider, the assistant's message, the bare list of its calls, or the chunks of a "
    "finished stream; for the text dialects `{text}`."
)
PENDING: dict[str, Any] = {"model": RunView, "description": "Some calls are not at their end: ask again."}
_RUN = {"application/json": {"schema": {"$ref": "#/components/schemas/RunView"}}}


_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The dialect the message is in, as `GET /v1/dialects` lists them, or `auto`.",
    "schema": {"type": "string", "enum": [*NAMES, AUTO]},
    "example": "openai-chat",
}
_HEADERS = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Needed only where the provider gives its calls no ids of their own.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    },
    {
        "name": "Toolcrib-Session",
        "in": "header",
        "required": False,
        "description": "The session to run in.",
        "schema": {"type": "string"},
    },
]


def create_run() -> dict[str, Any]:
    return {
        "tags": ["runs"],
        "summary": "Create Run",
        "operationId": "create_run",
        "description": (
            "Run all calls of a model's message. Every call gets exactly one answer, in the order of the message; they "
            "run in parallel where the gate allows. A message that comes again gets the answer it got, and nothing is "
            "run twice. With `Accept: text/event-stream` the calls' events are streamed, then `append` with the whole "
            "answer."
        ),
        "parameters": [_NAME, *parameters(), *_HEADERS],
        "requestBody": {
            "required": True,
            "description": MESSAGE_BODY,
            "content": {"application/json": {"schema": {}, "example": MESSAGE}},
        },
        "responses": {
            "200": {
                "description": "All calls have ended.",
                "content": _RUN | {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "202": {
                "description": PENDING["description"],
                "content": _RUN,
                "headers": {"Location": {"description": "Where to read it.", "schema": {"type": "string"}}},
            },
            "409": {"description": "The Idempotency-Key was used with another body.", "content": {}},
        },
    }
