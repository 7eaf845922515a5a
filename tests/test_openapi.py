"""The OpenAPI document is committed, complete and true."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from app.api import (
    asks,
    attachments,
    calls,
    events,
    files,
    health,
    key_bounds,
    keys,
    metrics,
    rules,
    secrets,
    sessions,
    terminals,
    tickets,
    tools,
)
from app.api import runs as run_routes
from app.api.create_call import create_call
from app.api.mcp import oauth, requests, resources, servers
from app.api.openapi import CREATE_CALL
from app.api.runs import create_run
from app.api.schemas import mcp, runs, views
from app.api.schemas.runs import RunOptions
from app.api.schemas.sessions import AllowlistRequest, SessionChange, SessionRequest
from app.config import Settings
from app.core.calls import CallRequest
from app.main import create_app

COMMITTED = Path(__file__).parent.parent / "openapi" / "openapi.json"
ROUTERS = (
    *(asks, attachments, calls, events, files, health, keys, metrics, rules, secrets, sessions),
    *(terminals, tickets, tools, servers, oauth, resources, run_routes),
)
METHODS = {"get", "head", "post", "put", "patch", "delete"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def views_of(module: ModuleType) -> list[type[BaseModel]]:
    return [one for name, one in vars(module).items() if name.endswith("View") and one.__module__ == module.__name__]


def test_the_committed_document_is_the_one_the_service_gives(document: dict[str, Any]) -> None:
    assert json.loads(COMMITTED.read_text()) == document


def test_operation_ids_are_the_route_names_and_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    routes = {route.name for module in ROUTERS for route in module.router.routes if isinstance(route, APIRoute)}

    assert len(ids) == len(set(ids))
    assert routes | {"create_call", "create_run"} == set(ids)


def test_everything_a_user_sees_is_described(document: dict[str, Any]) -> None:
    missing = [
        operation["operationId"]
        for _, _, operation in operations(document)
        if not operation.get("description") or not all(p.get("description") for p in operation.get("parameters", []))
    ]
    bare = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, about in schema.get("properties", {}).items()
        if not about.get("description")
    ]

    assert missing == []
    assert bare == []


def test_everything_sent_or_answered_has_an_example_that_fits(document: dict[str, Any]) -> None:
    models: list[type[BaseModel]] = [
        CallRequest,
        calls.BatchRequest,
        keys.KeyRequest,
        secrets.SecretRequest,
        key_bounds.BoundsRequest,
        key_bounds.RuleLine,
        AllowlistRequest,
        SessionRequest,
        SessionChange,
        terminals.SizeRequest,
        tickets.TicketRequest,
        calls.ResultRequest,
        tools.HttpToolRequest,
        tools.ClientToolRequest,
        tools.ImportRequest,
        asks.RuleEdit,
        asks.DecisionRequest,
        asks.ContentRequest,
        asks.RefusalRequest,
        rules.RuleRequest,
        requests.HttpServerRequest,
        requests.StdioServerRequest,
        requests.ModelServerRequest,
        requests.TokenRequest,
        requests.ToolNames,
        requests.ApprovalRequest,
        resources.PromptRequest,
        *views_of(views),
        *views_of(mcp),
        *views_of(runs),
    ]

    for model in models:
        for example in document["components"]["schemas"].get(model.__name__, model.model_json_schema())["examples"]:
            model.model_validate(example)
    assert len(models) == 71


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert named <= set(document["components"]["schemas"])


def test_the_hand_kept_entry_is_the_route_that_answers(document: dict[str, Any]) -> None:
    assert create_app(Settings())._fast_endpoint("/v1/calls") is create_call
    assert document["paths"]["/v1/calls"]["post"]["operationId"] == CREATE_CALL["operationId"] == create_call.__name__


def test_the_hand_kept_entry_of_runs_is_the_route_that_answers(document: dict[str, Any]) -> None:
    entry = document["paths"]["/v1/run/{name}"]["post"]

    assert create_app(Settings())._fast_endpoint("/v1/run/openai-chat") is create_run
    assert entry["operationId"] == create_run.__name__
    assert set(RunOptions.model_fields) <= {parameter["name"] for parameter in entry["parameters"]}


def test_every_route_but_health_needs_a_key(document: dict[str, Any]) -> None:
    without = {path for path, _, operation in operations(document) if not operation["security"]}

    assert without == {"/healthz", "/readyz"}


def test_what_is_not_in_a_body_is_never_null(document: dict[str, Any]) -> None:
    parameters = [p for _, _, operation in operations(document) for p in operation.get("parameters", [])]

    assert {p["name"] for p in parameters} >= {"Last-Event-ID", "after", "since"}
    assert "null" not in json.dumps([p["schema"] for p in parameters])


def test_every_operation_with_a_body_says_what_it_takes_it_as(document: dict[str, Any]) -> None:
    with_body = {path for path, _, operation in operations(document) if "requestBody" in operation}
    refusing = {path for path, _, operation in operations(document) if "415" in operation["responses"]}

    assert with_body == refusing != set()
