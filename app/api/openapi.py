"""The OpenAPI document: FastAPI's own, the entries of the fast path's routes, examples, and problem responses."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.api.create_call import DEFAULT_WAIT, MAX_WAIT
from app.api.http.body import MAX_DEPTH, MAX_DIGITS, MAX_VALUES
from app.api.http.problems import MEDIA_TYPE, ProblemBody
from app.api.schemas import EXAMPLES, mcp, runs, views
from app.api.schemas.runs import MESSAGE, MESSAGE_BODY, PENDING, RunOptions
from app.core.calls import CallRequest
from app.dispatch.idempotency import MAX_KEY_LENGTH
from app.providers.registry import AUTO, NAMES

PROBLEMS = {
    "400": "The request is malformed, or its body is not JSON.",
    "401": "No valid key.",
    "403": "The key may not do that, or the host or origin is not allowed.",
    "404": "Not there, or not yours.",
    "408": "The request took too long.",
    "413": "The body is larger than the service takes.",
    "422": "The request is not valid.",
    "431": "The headers are too large, or too many.",
    "503": "Not ready, stopping, full, or the store cannot be written.",
}
OPEN_PROBLEMS = ("400", "403", "408", "413", "431")
BODY_PROBLEMS = {"415": "The body is packed, or not of the media type that is taken."}
LIMIT_PROBLEMS = {"429": "The key has as many calls under way, or event streams open, as it may have."}
LIMITED = {
    *("create_call", "create_call_batch", "create_run", "list_events", "list_call_events"),
    *("list_files", "get_file", "head_file", "put_file", "delete_file", "read_mcp_resource", "fill_mcp_prompt"),
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}}
OPEN_PATHS = {"/healthz", "/readyz"}
TICKET_PATHS = {"/v1/events", "/v1/calls/{id}/events"}
_CALL = {"application/json": {"schema": {"$ref": "#/components/schemas/CallView"}}}
_RUN = {"application/json": {"schema": {"$ref": "#/components/schemas/RunView"}}}
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
_LOCATION = {"Location": {"description": "Where to read it.", "schema": {"type": "string"}}}
_CONFLICT = {"description": "The Idempotency-Key was used with another body.", "content": {}}
_TRACE = {"traceparent": {"description": "The call's own span, when calls are traced.", "schema": {"type": "string"}}}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    schema = {"type": "string"} | schema
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    parameters = []
    for name, schema in model.model_json_schema()["properties"].items():
        description = schema.pop("description")
        shown = {key: value for key, value in schema.items() if key != "title" and value is not None}
        parameters.append({"name": name, "in": "query", "required": False, "description": description, "schema": shown})
    return parameters


CREATE_CALL: dict[str, Any] = {
    "tags": ["calls"],
    "summary": "Create Call",
    "operationId": "create_call",
    "description": (
        "Run a tool. A tool that failed is still a 200: the call ends in `error` with a sentence the model can act "
        "on. With `Accept: text/event-stream` the answer is the call's own event stream. The body is strict JSON: "
        f"nested {MAX_DEPTH} levels at most, numbers of {MAX_DIGITS} digits at most, {MAX_VALUES:,} values at most, "
        "no NaN or Infinity, no lone surrogates. Of two equal keys in one object the last wins."
    ),
    "parameters": [
        {
            "name": "wait",
            "in": "query",
            "required": False,
            "description": "Seconds to wait for the end; 0 answers as soon as the call is recorded.",
            "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT, "default": DEFAULT_WAIT},
        },
        _header(
            "Idempotency-Key",
            "The same key and body give the same call, however often it is sent.",
            minLength=1,
            maxLength=MAX_KEY_LENGTH,
        ),
        _header("Toolcrib-Session", "The session to run in, when the body does not name one."),
        _header("traceparent", "W3C trace context, with `tracestate` if there is one: the trace this call is part of."),
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CallRequest"}}},
    },
    "responses": {
        "200": {"description": "The call has ended.", "content": _CALL | _STREAM, "headers": _TRACE},
        "202": {
            "description": "The call is recorded and has not ended yet.",
            "content": _CALL,
            "headers": _LOCATION | _TRACE,
        },
        "409": _CONFLICT,
    },
}

CREATE_RUN: dict[str, Any] = {
    "tags": ["runs"],
    "summary": "Create Run",
    "operationId": "create_run",
    "description": (
        "Run all calls of a model's message. Every call gets exactly one answer, in the order of the message; they "
        "run in parallel where the gate allows. A message that is sent again gets the same answer, and nothing is "
        "run twice. With `Accept: text/event-stream` the calls' events are streamed, then `append` with the whole "
        "answer."
    ),
    "parameters": [
        {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "The dialect the message is in, as `GET /v1/dialects` lists them, or `auto`.",
            "schema": {"type": "string", "enum": [*NAMES, AUTO]},
            "example": "openai-chat",
        },
        *_query_parameters(RunOptions),
        _header(
            "Idempotency-Key",
            "Needed only where the provider gives its calls no ids of their own.",
            minLength=1,
            maxLength=MAX_KEY_LENGTH,
        ),
        _header("Toolcrib-Session", "The session to run in."),
    ],
    "requestBody": {
        "required": True,
        "description": MESSAGE_BODY,
        "content": {"application/json": {"schema": {}, "example": MESSAGE}},
    },
    "responses": {
        "200": {"description": "All calls have ended.", "content": _RUN | _STREAM},
        "202": {"description": PENDING["description"], "content": _RUN, "headers": _LOCATION},
        "409": _CONFLICT,
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
    document["paths"].setdefault("/v1/run/{name}", {})["post"] = CREATE_RUN
    schemas = document["components"]["schemas"]
    views_of = [vars(module).items() for module in (views, runs, mcp)]
    models: list[type[BaseModel]] = [CallRequest, ProblemBody]  # rendered by pydantic: FastAPI leaves nulls out
    models += [model for items in views_of for name, model in items if name.endswith("View")]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        if model.__name__ in EXAMPLES:
            schema["examples"] = [EXAMPLES[model.__name__]]
        schemas[model.__name__] = dict(sorted(schema.items()))
    for name, example in EXAMPLES.items():
        schemas[name].setdefault("examples", [example])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "ticket": {"type": "apiKey", "in": "query", "name": "ticket"},
    }
    for path, item in document["paths"].items():
        for operation in item.values():
            _add_problems(operation, is_open=path in OPEN_PATHS)
            _drop_nulls(operation)
            if path in TICKET_PATHS:
                operation["security"].append({"ticket": []})
    return document


def _add_problems(operation: dict[str, Any], *, is_open: bool) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    operation["security"] = [] if is_open else [{"key": []}]
    responses = operation["responses"]
    for status, text in _problems_of(operation, is_open=is_open).items():
        responses[status] = {"description": text, "content": content}
        if status in ("429", "503"):
            responses[status]["headers"] = _RETRY_AFTER
    for status, response in responses.items():
        if status >= "400" and not response.get("content"):
            response["content"] = content


def _drop_nulls(operation: dict[str, Any]) -> None:
    """A query or a header has no null: what may be left out is simply not sent."""
    for parameter in operation.get("parameters", []):
        schema = parameter["schema"]
        kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            del schema["anyOf"]
            schema |= kinds[0]


def _problems_of(operation: dict[str, Any], *, is_open: bool) -> dict[str, str]:
    """What this operation can answer besides what it says of itself."""
    if is_open:
        return {status: PROBLEMS[status] for status in OPEN_PROBLEMS}
    of_body = BODY_PROBLEMS if "requestBody" in operation else {}
    return PROBLEMS | of_body | (LIMIT_PROBLEMS if operation["operationId"] in LIMITED else {})
