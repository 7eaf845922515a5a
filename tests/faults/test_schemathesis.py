"""The service does what its OpenAPI document says, whatever it is asked: schemathesis over every operation.

`SCHEMATHESIS_SEED` and `SCHEMATHESIS_EXAMPLES` ask other and more questions than the usual ones.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.fault_service import KEY
from tests.faults.service_processes import Started, command_line

pytestmark = pytest.mark.faults

FOLDER = Path(__file__).parent
HANG = 900
LEAST = 30
FEWER = {
    "DELETE /v1/sessions/{id}": 15,
    "DELETE /v1/sessions/{id}/terminals/{terminal}": 15,
    "DELETE /v1/mcp/servers/{name}": 15,
}
"""It asks mostly for what it has made, and stops when it has deleted that."""
SCOPES = ["calls:run", "calls:read", "asks:answer", "rules:write", "tools:write"]
ASKS = 25
ASKING: dict[str, dict[str, Any]] = {
    "decision": {"tool": "read_file", "arguments": {"file_path": ".env"}},
    "action": {
        "tool": "request_user_input",
        "arguments": {"questions": [{"id": "why", "header": "Reason", "question": "Why?"}]},
    },
}
"""By the form of its answer, a call that asks."""
PHASES = {"examples", "coverage", "fuzzing", "stateful"}
CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ensure_resource_availability",
    "ignored_auth",
    "object_level_authorization",
}
FARTHEST = {
    "POST /v1/calls/{id}/result": 409,
    "GET /v1/calls/{id}/attachments/{n}": 404,
    "HEAD /v1/calls/{id}/attachments/{n}": 404,
    "GET /v1/sessions/{id}/terminals/{terminal}": 404,
    "DELETE /v1/sessions/{id}/terminals/{terminal}": 404,
    "POST /v1/sessions/{id}/terminals/{terminal}/resize": 404,
    "GET /v1/mcp/resources/read": 404,
    "POST /v1/mcp/prompts": 404,
    "POST /v1/mcp/servers/{name}/auth": 404,
    "GET /v1/run/{name}": 404,
}
"""As it is shipped no tool is run by a client, so its calls have no result to be posted; the calls it makes attach
nothing; nobody guesses the number of a terminal or the id of a run; and no MCP server answers."""
SPARES = 60
"""Files to be deleted."""


@dataclass(slots=True)
class Asked:
    """What schemathesis says it did: the statuses each operation answered with, and what it looked at."""

    answers: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    phases: set[str] = field(default_factory=set)
    checks: set[str] = field(default_factory=set)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Started]:
    """As it is shipped."""
    started = Started(command_line(tmp_path / "data"))
    yield started
    started.close()


@pytest.mark.timeout(HANG + 60)
def test_every_operation_does_what_the_document_says(service: Started, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{service.port}"
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False) as admin:
        document = admin.get("/openapi.json").json()
        alice, kept = write_users(admin, tmp_path / "users.json")
        ask_alice(admin, alice, tmp_path / "asks.json")
        for number in range(SPARES):
            admin.put(f"/v1/sessions/default/files/spare-{number}.txt", content=b"spare")

    run = run_schemathesis(f"{url}/openapi.json", tmp_path, kept)
    _, log = service.end()

    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in log
    asked = read_report(tmp_path / "report.ndjson")
    assert (asked.phases, asked.checks) == (PHASES, CHECKS)
    least = {name: FEWER.get(name, LEAST) if is_rich else 1 for name, is_rich in operations(document)}
    assert {name: len(asked.answers[name]) for name in least if len(asked.answers[name]) < least[name]} == {}
    for operation in least:
        answers = asked.answers[operation]
        far = any(200 <= status < 300 or status == FARTHEST.get(operation) for status in answers)
        assert far, f"{operation} never worked: {set(answers)}"


def run_schemathesis(location: str, folder: Path, kept: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(FOLDER / "schemathesis.toml"), "run"]
    command += [location, "--no-color", "--report", "ndjson", "--report-ndjson-path", "report.ndjson"]
    for option, name in (("--seed", "SCHEMATHESIS_SEED"), ("--max-examples", "SCHEMATHESIS_EXAMPLES")):
        command += [option, os.environ[name]] if name in os.environ else []
    told = {
        "SCHEMATHESIS_HOOKS": str(FOLDER / "schemathesis_hooks.py"),
        "SCHEMATHESIS_USERS": str(folder / "users.json"),
        "SCHEMATHESIS_KEPT_KEYS": " ".join(kept),
        "SCHEMATHESIS_ASKS": str(folder / "asks.json"),
    }
    return subprocess.run(command, cwd=folder, env=os.environ | told, capture_output=True, text=True, timeout=HANG)


def write_users(admin: httpx.Client, path: Path) -> tuple[str, list[str]]:
    """Keys for those who ask, in the form schemathesis reads; the answer is Alice's token and the ids of the keys."""
    tokens, ids = {}, []
    for principal in ("alice", "bob"):
        made = admin.post("/v1/keys", json={"principal": principal, "scopes": SCOPES}).json()
        tokens[principal] = made["token"]
        ids.append(made["id"])
    path.write_text(json.dumps({"auth": [user(name, token) for name, token in (tokens | {"admin": KEY}).items()]}))
    return tokens["alice"], ids


def ask_alice(admin: httpx.Client, token: str, path: Path) -> None:
    """Let calls of Alice's wait for a person, and write down their asks by the form of the answer."""
    headers = {"Authorization": f"Bearer {token}"}
    for body in list(ASKING.values()) * ASKS:
        call = admin.post("/v1/calls?wait=0", json=body | {"ask_timeout": 2 * HANG}, headers=headers)
        assert call.status_code == 202, call.text
    while len(found := admin.get("/v1/asks?status=open&limit=500").json()["data"]) < ASKS * len(ASKING):
        pass
    forms = {body["tool"]: form for form, body in ASKING.items()}
    path.write_text(json.dumps({ask["id"]: forms[ask["tool"]] for ask in found}))


def user(name: str, token: str) -> dict[str, Any]:
    return {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {token}"}]}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Every operation there is, and whether there is much to vary in it: more than a path, and a yes or no."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            given = operation.get("parameters", [])
            places = {parameter["in"] for parameter in given if parameter["schema"].get("type") != "boolean"}
            yield f"{method.upper()} {path}", "query" in places or "requestBody" in operation


def read_report(path: Path) -> Asked:
    asked = Asked()
    for line in path.read_text().splitlines():
        if (scenario := json.loads(line).get("ScenarioFinished")) is None:
            continue
        asked.phases.add(scenario["phase"])
        recorded = scenario["recorder"]
        asked.checks |= {check["name"] for checks in recorded.get("checks", {}).values() for check in checks}
        for id, case in recorded.get("cases", {}).items():
            response = recorded["interactions"][id]["response"]
            asked.answers[f"{case['value']['method']} {case['value']['path']}"].append(response["status_code"])
    return asked
