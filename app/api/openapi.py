"""The OpenAPI document: FastAPI's own, the hand-kept entry of the hot route, and the problems all can answer."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.problems import MEDIA_TYPE, ProblemBody
from app.api.shapes import (
    AttachmentView,
    CallView,
    ErrorView,
    EventView,
    HealthView,
    KeyView,
    NewKeyView,
    ResultView,
    ToolView,
)
from app.api.submissions import DEFAULT_WAIT, MAX_WAIT
from app.core.calls import CallRequest

PROBLEMS = {
    "400": "The body is not JSON.",
    "401": "No valid key.",
    "403": "The key may not do that, or the host or origin is not allowed.",
    "404": "Not there, or not yours.",
    "422": "The request does not fit.",
    "503": "Not ready, stopping, or the store cannot be written.",
}
MODELS = (
    CallRequest,
    CallView,
    ResultView,
    ErrorView,
    AttachmentView,
    EventView,
    ToolView,
    KeyView,
    NewKeyView,
    HealthView,
    ProblemBody,
)
"""Put in as pydantic gives them; FastAPI's own rendering leaves nulls out of the examples."""
OPEN_PATHS = {"/healthz", "/readyz"}
_CALL = {"application/json": {"schema": {"$ref": "#/components/schemas/CallView"}}}

CREATE_CALL: dict[str, Any] = {
    "tags": ["calls"],
    "summary": "Create Call",
    "operationId": "create_call",
    "description": (
        "Run a tool. A tool that failed is still a 200: the call ends in `error` with a sentence the model can act "
        "on. With `Accept: text/event-stream` the answer is the call's own event stream."
    ),
    "parameters": [
        {
            "name": "wait",
            "in": "query",
            "required": False,
            "description": "Seconds to wait for the end; 0 answers as soon as the call is recorded.",
            "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT, "default": DEFAULT_WAIT},
        },
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same key and body give the same call, however often it is sent.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        },
        {
            "name": "Toolcrib-Session",
            "in": "header",
            "required": False,
            "description": "The session to run in, when the body does not name one.",
            "schema": {"type": "string"},
        },
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CallRequest"}}},
    },
    "responses": {
        "200": {
            "description": "The call has ended.",
            "content": _CALL | {"text/event-stream": {"schema": {"type": "string"}}},
        },
        "202": {
            "description": "The call is recorded and not at its end yet.",
            "content": _CALL,
            "headers": {"Location": {"description": "Where to read it.", "schema": {"type": "string"}}},
        },
        "409": {"description": "The Idempotency-Key was used with another body.", "content": {}},
        "415": {"description": "The body is not sent as JSON.", "content": {}},
    },
}


def install(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = build(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    document["paths"].setdefault("/v1/calls", {})["post"] = CREATE_CALL
    schemas = document["components"]["schemas"]
    for model in MODELS:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, item in document["paths"].items():
        for operation in item.values():
            _add_problems(operation, is_open=path in OPEN_PATHS)
    return document


def _add_problems(operation: dict[str, Any], *, is_open: bool) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    operation["security"] = [] if is_open else [{"key": []}]
    responses = operation["responses"]
    for status, text in PROBLEMS.items():
        if not is_open and status not in ("200", "202"):
            responses[status] = {"description": text, "content": content}
    for status, response in responses.items():
        if status >= "400" and not response.get("content"):
            response["content"] = content
