"""The OpenAPI document: FastAPI's own, the hand-kept entry of the hot route, and the problems all can answer."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.create_call import DEFAULT_WAIT, MAX_WAIT
from app.api.http.body import MAX_DEPTH, MAX_DIGITS, MAX_VALUES
from app.api.http.problems import MEDIA_TYPE, ProblemBody
from app.api.schemas.mcp import (
    ContentsView,
    InvalidToolView,
    McpServerView,
    MessagesView,
    PromptView,
    ResourceView,
    SignInView,
    TemplateView,
)
from app.api.schemas.runs import DialectView, ModelCallView, ParsedView, RunView, create_run
from app.api.schemas.views import (
    AnswerView,
    AskView,
    AttachmentView,
    BwrapView,
    CallView,
    CheckView,
    ErrorView,
    EventView,
    FileView,
    HealthView,
    ImportView,
    KeptRuleView,
    KeyView,
    NeedView,
    NewKeyView,
    PlanView,
    ProbeView,
    ReadinessView,
    ReloadView,
    ResultView,
    RuleView,
    SandboxView,
    SecretView,
    SessionView,
    SkippedView,
    TerminalView,
    TicketView,
    ToolLineView,
    ToolView,
    TrialView,
    UnloadedView,
    WrittenFileView,
)
from app.core.calls import CallRequest

PROBLEMS = {
    "400": "The request is malformed, or its body is not JSON.",
    "401": "No valid key.",
    "403": "The key may not do that, or the host or origin is not allowed.",
    "404": "Not there, or not yours.",
    "408": "The request took too long to come.",
    "413": "The body is larger than the service takes.",
    "422": "The request does not fit.",
    "431": "The headers are too large, or too many.",
    "503": "Not ready, stopping, full, or the store cannot be written.",
}
OPEN_PROBLEMS = ("400", "403", "408", "413", "431")
BODY_PROBLEMS = {"415": "The body is packed, or not of the media type that is taken."}
CROWD_PROBLEMS = {"429": "The key has as many calls under way, or event streams open, as it may have."}
CROWDED = {
    *("create_call", "create_call_batch", "create_run", "list_events", "list_call_events"),
    *("list_files", "get_file", "head_file", "put_file", "delete_file", "read_mcp_resource", "fill_mcp_prompt"),
}
_LATER = {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}}
MODELS = (
    CallRequest,
    CallView,
    ResultView,
    ErrorView,
    AttachmentView,
    EventView,
    ToolView,
    ToolLineView,
    ImportView,
    SkippedView,
    ReloadView,
    UnloadedView,
    KeyView,
    NewKeyView,
    SessionView,
    PlanView,
    TerminalView,
    FileView,
    WrittenFileView,
    SecretView,
    AskView,
    AnswerView,
    NeedView,
    RuleView,
    KeptRuleView,
    TicketView,
    SandboxView,
    TrialView,
    ProbeView,
    BwrapView,
    HealthView,
    ReadinessView,
    CheckView,
    McpServerView,
    InvalidToolView,
    SignInView,
    ResourceView,
    TemplateView,
    PromptView,
    ContentsView,
    MessagesView,
    RunView,
    ModelCallView,
    ParsedView,
    DialectView,
    ProblemBody,
)
"""Put in as pydantic gives them; FastAPI's own rendering leaves nulls out of the examples."""
OPEN_PATHS = {"/healthz", "/readyz"}
TICKET_PATHS = {"/v1/events", "/v1/calls/{id}/events"}
_CALL = {"application/json": {"schema": {"$ref": "#/components/schemas/CallView"}}}
_TRACE = {"traceparent": {"description": "The call's own span, when calls are traced.", "schema": {"type": "string"}}}

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
        {
            "name": "traceparent",
            "in": "header",
            "required": False,
            "description": "W3C trace context, with `tracestate` if there is one: the trace this call is part of.",
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
            "headers": _TRACE,
        },
        "202": {
            "description": "The call is recorded and not at its end yet.",
            "content": _CALL,
            "headers": {"Location": {"description": "Where to read it.", "schema": {"type": "string"}}} | _TRACE,
        },
        "409": {"description": "The Idempotency-Key was used with another body.", "content": {}},
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
    document["paths"].setdefault("/v1/run/{name}", {})["post"] = create_run()
    schemas = document["components"]["schemas"]
    for model in MODELS:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        schemas[model.__name__] = schema
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
            responses[status]["headers"] = _LATER
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
    more = BODY_PROBLEMS if "requestBody" in operation else {}
    return PROBLEMS | more | (CROWD_PROBLEMS if operation["operationId"] in CROWDED else {})
