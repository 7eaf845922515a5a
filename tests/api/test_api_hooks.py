"""Hooks through the door: a service as the operator configures it, in a process of its own."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import key_of, serving, toolcrib, url_of

GUARD = """#!/bin/bash
given=$(cat)
if [[ $given == *secret.txt* ]]; then
  echo "secret.txt stays where it is." >&2
  exit 2
fi
"""
SCRIBE = """
from app.sdk import hook

@hook("tool.execute.after", tools="read_file")
def scribe(about):
    return {"output": f"{about['tool']}, {about['success']}: {about['output']}"}
"""
CONFIG = """
hooks_dir = "hooks"

[[hooks]]
name = "guard"
on = ["tool.execute.before"]
tools = ["read_*"]
command = ["./guard"]
timeout = 20
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a configuration."""
    (tmp_path / "guard").write_text(GUARD)
    (tmp_path / "guard").chmod(0o755)
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "scribe.py").write_text(SCRIBE)
    (tmp_path / "toolcrib.toml").write_text(CONFIG)
    return tmp_path


def read(client: httpx.Client, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A call of read_file, and its events."""
    body = {"tool": "read_file", "arguments": {"file_path": path}}
    call = client.post("/v1/calls", json=body).json()
    page = client.get(f"/v1/calls/{call['id']}/events", headers={"Accept": "application/json"})
    return call, page.json()["data"]


def hooked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = [event["data"] for event in events if event["type"] == "call.hook"]
    assert all(data.pop("duration_ms") >= 0 for data in told)
    return told


def test_configured_hooks_block_change_and_are_told(folder: Path) -> None:
    with serving(folder) as announced:
        headers = {"Authorization": f"Bearer {key_of(folder)}"}
        with httpx.Client(base_url=url_of(announced), headers=headers, trust_env=False) as client:
            blocked, blocked_events = read(client, "secret.txt")
            fine, fine_events = read(client, "hello.txt")

    message = "secret.txt stays where it is."
    assert blocked["status"] == "error"
    assert blocked["error"] == {"code": "HookDenied", "message": message, "retryable": False}
    assert [event["type"] for event in blocked_events] == ["call.pending", "call.hook", "call.hook", "call.error"]
    assert hooked(blocked_events) == [
        {"name": "guard", "point": "tool.execute.before", "verdict": "deny", "message": message},
        {"name": "scribe", "point": "tool.execute.after", "verdict": "changed"},
    ]
    assert blocked["result"]["output"] == "read_file, False: None"
    assert fine["status"] == "completed"
    assert fine["result"]["output"].startswith("read_file, True: ")
    assert "Hello from your Toolcrib workspace." in fine["result"]["output"]
    assert [data["verdict"] for data in hooked(fine_events)] == ["ok", "changed"]


def test_a_folder_of_hooks_that_is_not_there_keeps_the_service_from_starting(folder: Path) -> None:
    (folder / "toolcrib.toml").write_text('hooks_dir = "nowhere"')

    done = toolcrib(folder, "serve", "--port", "0")

    assert done.returncode == 1
    assert "hooks_dir is nowhere, which cannot be read: No such file or directory." in done.stderr


def test_a_hook_that_cannot_be_loaded_keeps_the_service_from_starting(folder: Path) -> None:
    (folder / "hooks" / "broken.py").write_text("import nothing_of_that_name")

    done = toolcrib(folder, "serve", "--port", "0")

    assert done.returncode == 1
    assert "A hook cannot be loaded" in done.stderr
    assert "No module named 'nothing_of_that_name'" in done.stderr
