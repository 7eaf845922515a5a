"""A real API: the descriptions of Apache Airflow, in OpenAPI 3.0 and 3.1, imported whole and called."""

import base64
import gzip
import json
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from app.core.custom_tools import HttpDefinition
from app.core.errors import InvalidArgs
from app.core.tools import Effect, Tool
from app.custom.http_tools import make
from app.custom.openapi.document import parse
from app.custom.openapi.importer import read
from tests.support.http_servers import Peer, Seen, reply, serving
from tests.support.outbound_context import context

FOLDER = Path(__file__).parent.parent / "scenarios" / "airflow"
AUTH = {"v1": {"Basic": "LOGIN"}, "v2": {"OAuth2PasswordBearer": "TOKEN"}}
OPERATIONS = {"v1": 89, "v2": 99}
BASIC = "Basic " + base64.b64encode(b"user:password").decode()
BEARER = "Bearer t0ken-value"


@lru_cache
def document(version: str) -> dict[str, Any]:
    return parse(gzip.decompress((FOLDER / f"{version}.yaml.gz").read_bytes()).decode())


def imported(version: str, server: str = "https://airflow.example/api/v1", **more: Any) -> dict[str, HttpDefinition]:
    made, skipped = read(document(version), server=server, auth=AUTH[version], **more)
    assert skipped == []
    return {definition.name: definition for definition in made}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_every_operation_becomes_a_tool_with_a_schema_of_its_own(version: str) -> None:
    tools = [make(definition, "anna") for definition in imported(version).values()]

    assert len(tools) == OPERATIONS[version] > 50
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.schema)
        assert tool.schema["type"] == "object"
        assert tool.description
        assert "$ref" not in json.dumps(tool.schema) or "$defs" in tool.schema


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_operation_takes_what_the_description_says(version: str) -> None:
    """Counted in the document itself: nothing is lost on the way, and nothing is made up."""
    source, made = document(version), imported(version, server="https://airflow.example").values()
    for path, item in source["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            url = f"https://airflow.example{path}"
            [definition] = [one for one in made if (one.method, one.url) == (method.upper(), url)]
            shared = [_resolve(source, one) for one in item.get("parameters", [])]
            own = [_resolve(source, one) for one in operation.get("parameters", [])]
            wanted = {(one["in"], one["name"]) for one in (*shared, *own)} - {("header", "accept")}
            places = {name: one if isinstance(one, str) else one.place for name, one in definition.places.items()}
            assert {(place, name) for name, place in places.items() if "body" not in place} == wanted
            assert ("requestBody" in operation) == any("body" in place for place in places.values())


def _resolve(source: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in given:
        found = source
        for part in given["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        given = found
    return given


def test_a_relative_server_is_where_the_document_came_from() -> None:
    made, _ = read(document("v1"), url="https://airflow.example/docs/openapi.yaml", prefix="af", include=["DAG"])

    assert all(definition.url.startswith("https://airflow.example/api/v1/") for definition in made)
    assert all(definition.name.startswith("af_") for definition in made)
    assert 0 < len(made) < 20


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as peer:
        peer.otherwise = reply(b'{"ok": true}', "200 OK", "Content-Type: application/json")
        yield peer


CALLS: list[tuple[str, str, dict[str, Any], tuple[str, str, list[tuple[str, str]], Any]]] = [
    ("v1", "get_dags", {"limit": "5", "tags": ["a", "b"], "only_active": "false"},
     ("GET", "/api/v1/dags", [("limit", "5"), ("tags", "a"), ("tags", "b"), ("only_active", "false")], None)),
    ("v1", "get_dag", {"dag_id": "my/dag", "fields": ["dag_id", "tags"]},
     ("GET", "/api/v1/dags/my%2Fdag", [("fields", "dag_id"), ("fields", "tags")], None)),
    ("v1", "patch_dag", {"dag_id": "d", "update_mask": ["is_paused"], "is_paused": True},
     ("PATCH", "/api/v1/dags/d", [("update_mask", "is_paused")], {"is_paused": True})),
    ("v1", "post_dag_run", {"dag_id": "d", "dag_run_id": "r", "conf": {"x": [1]}, "note": None},
     ("POST", "/api/v1/dags/d/dagRuns", [], {"dag_run_id": "r", "conf": {"x": [1]}, "note": None})),
    ("v1", "delete_dag_run", {"dag_id": "d", "dag_run_id": "manual__2024-01-01T00:00:00+00:00"},
     ("DELETE", "/api/v1/dags/d/dagRuns/manual__2024-01-01T00%3A00%3A00%2B00%3A00", [], None)),
    ("v1", "post_connection", {"connection_id": "c", "conn_type": "http", "port": "80", "extra": None},
     ("POST", "/api/v1/connections", [], {"connection_id": "c", "conn_type": "http", "port": 80, "extra": None})),
    ("v1", "get_log", {"dag_id": "d", "dag_run_id": "r", "task_id": "t", "task_try_number": 2, "full_content": True},
     ("GET", "/api/v1/dags/d/dagRuns/r/taskInstances/t/logs/2", [("full_content", "true")], None)),
    ("v1", "post_clear_task_instances", {"dag_id": "d", "dry_run": False, "task_ids": ["a"]},
     ("POST", "/api/v1/dags/d/clearTaskInstances", [], {"dry_run": False, "task_ids": ["a"]})),
    ("v1", "get_health", {}, ("GET", "/api/v1/health", [], None)),
    ("v2", "get_assets", {"dag_ids": ["a", "b"], "only_active": True, "name_pattern": "x%"},
     ("GET", "/api/v2/assets", [("dag_ids", "a"), ("dag_ids", "b"), ("only_active", "true"), ("name_pattern", "x%")],
      None)),
    ("v2", "create_asset_event", {"asset_id": "3", "extra": {"k": "v"}},
     ("POST", "/api/v2/assets/events", [], {"asset_id": 3, "extra": {"k": "v"}})),
    ("v2", "materialize_asset", {"asset_id": 7}, ("POST", "/api/v2/assets/7/materialize", [], None)),
    ("v2", "delete_pool", {"pool_name": "my pool"}, ("DELETE", "/api/v2/pools/my%20pool", [], None)),
    ("v2", "create_backfill",
     {"dag_id": "d", "from_date": "2024-01-01T00:00:00Z", "to_date": "2024-01-02T00:00:00Z", "max_active_runs": 2},
     ("POST", "/api/v2/backfills", [],
      {"dag_id": "d", "from_date": "2024-01-01T00:00:00Z", "to_date": "2024-01-02T00:00:00Z", "max_active_runs": 2})),
]  # fmt: skip


@pytest.mark.parametrize(("version", "name", "args", "arrives"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
async def test_a_call_arrives_as_the_description_says(
    peer: Peer, version: str, name: str, args: dict[str, Any], arrives: tuple[str, str, list[tuple[str, str]], Any]
) -> None:
    server = peer.url("/api/v1" if version == "v1" else "", "airflow.example")
    tool = _tool(version, name, server)

    result = await tool.run(tool.parse(args), context())

    [seen] = peer.seen
    assert _told(seen) == arrives
    secured = version == "v1" or "security" in _operation("v2", tool)
    assert seen.headers.get("authorization") == ((BASIC if version == "v1" else BEARER) if secured else None)
    assert seen.headers.get("content-type") == ("application/json" if arrives[3] is not None else None)
    assert result.structured == {"ok": True}
    assert tool.effect == (Effect.READ if arrives[0] == "GET" else Effect.WRITE)


async def test_headers_of_the_description_are_sent(peer: Peer) -> None:
    """Its only header is `Accept`, which is not the caller's; so one is added to the document."""
    source = json.loads(json.dumps(document("v1")))
    source["paths"]["/dags"]["get"]["parameters"].append(
        {"name": "X-Page", "in": "header", "schema": {"type": "integer"}}
    )
    [made], _ = read(source, server=peer.url("", "airflow.example"), include=["get_dags"])
    tool = make(made, None)

    await tool.run(tool.parse({"X-Page": "4"}), context())

    assert peer.seen[0].headers["x-page"] == "4"


@pytest.mark.parametrize(
    ("name", "args", "fields"),
    [
        ("get_dag", {}, ["dag_id"]),
        ("get_dags", {"limit": "many"}, ["limit"]),
        ("get_dags", {"nonsense": 1}, ["nonsense"]),
        ("post_clear_task_instances", {"dag_id": "d", "task_ids": []}, ["task_ids"]),
    ],
)
def test_what_does_not_fit_the_description_never_leaves(name: str, args: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(InvalidArgs) as refused:
        _tool("v1", name, "https://airflow.example").parse(args)

    assert refused.value.details == {"fields": fields}


def _tool(version: str, name: str, server: str) -> Tool:
    return make(imported(version, server, include=[name])[name], "anna")


def _operation(version: str, tool: Tool) -> dict[str, Any]:
    return next(
        operation
        for item in document(version)["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict) and operation.get("operationId") == tool.name
    )


def _told(seen: Seen) -> tuple[str, str, list[tuple[str, str]], Any]:
    return seen.method, seen.path, seen.query, json.loads(seen.body) if seen.body else None
