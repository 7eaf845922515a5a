"""Servers by others, installed from their registry and used for what they are there for."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.mcp_service import call, crib, done, server_of

BIN = Path(sys.executable).parent


async def test_the_time_server_tells_and_converts_times(data_dir: Path) -> None:
    async with crib(data_dir, {"time": {"command": str(BIN / "mcp-server-time")}}) as service:
        view = await server_of(service, "time")
        listed = (await service.client.get("/v1/tools/mcp__time__convert_time")).json()
        now = await done(service, "mcp__time__get_current_time", {"timezone": "Asia/Tokyo"})
        there = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Asia/Kathmandu"}
        converted = await done(service, "mcp__time__convert_time", there)
        nowhere = await call(service, "mcp__time__get_current_time", {"timezone": "Mars/Olympus"})
        wrong = await call(service, "mcp__time__get_current_time", {"zone": "Asia/Tokyo"})

    assert (view["protocol_version"], view["tools"], view["invalid_tools"]) == ("2026-07-28", 2, [])
    assert view["server_info"]["name"] == "mcp-time"
    assert listed["parameters"]["required"] == ["source_timezone", "time", "target_timezone"]
    assert now["structured"]["timezone"] == "Asia/Tokyo"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+09:00", now["structured"]["datetime"])
    assert converted["structured"]["time_difference"] == "-3.25h"
    assert "08:45:00+05:45" in converted["output"]
    assert (nowhere["status"], nowhere["error"]["code"]) == ("error", "McpError")
    assert "Mars/Olympus" in nowhere["error"]["message"]
    assert (wrong["status"], wrong["error"]["code"]) == ("error", "InvalidArgs")


async def test_the_git_server_works_in_a_repository(data_dir: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    git(tmp_path, "init", "-q", "-b", "main", str(repository))
    for setting, value in {"user.name": "Ann", "user.email": "ann@example.com"}.items():
        git(repository, "config", setting, value)
    (repository / "note.txt").write_text("first\n")
    here = {"repo_path": str(repository)}
    server = {"command": str(BIN / "mcp-server-git"), "args": ["--repository", str(repository)]}

    async with crib(data_dir, {"git": server}) as service:
        before = await done(service, "mcp__git__git_status", here)
        await done(service, "mcp__git__git_add", here | {"files": ["note.txt"]})
        staged = await done(service, "mcp__git__git_diff_staged", here)
        await done(service, "mcp__git__git_commit", here | {"message": "Keep a note"})
        log = await done(service, "mcp__git__git_log", here)
        outside = await call(service, "mcp__git__git_status", {"repo_path": str(tmp_path)})
        listed = {tool["name"]: tool for tool in (await service.client.get("/v1/tools")).json()["data"]}

    assert "note.txt" in before["output"]
    assert "+first" in staged["output"]
    assert "Keep a note" in log["output"]
    assert "Ann" in log["output"]
    assert git(repository, "log", "--format=%s") == "Keep a note\n"
    assert (outside["status"], outside["error"]["code"]) == ("error", "McpError")
    assert listed["mcp__git__git_status"]["effect"] == "read"
    assert listed["mcp__git__git_commit"]["effect"] == "write"


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout
