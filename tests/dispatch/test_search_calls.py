"""Searches as calls: with the rules of the house, and an end to each of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.core.tools import Tool
from app.sandbox.process import process_tree
from app.tools.files import glob, grep, grep_files
from tests.support.services import Crib, until
from tests.support.toy_tools import Toys


class Searching(Toys):
    """A house without toys, but with what searches."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return glob.tool, grep.tool, grep_files.tool


@pytest.fixture
def toys() -> Toys:
    return Searching()


async def opened(crib: Crib, tmp_path: Path, *names: str) -> Path:
    """A house whose workspace has these files in it, all with the same line."""
    workspace = tmp_path / "searched"
    for name in names:
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("needle\n")
    crib.settings["workspace"] = workspace
    await crib.open()
    return workspace


async def test_what_would_have_to_be_asked_is_left_out_and_what_was_asked_for_by_name_is_asked(
    crib: Crib, tmp_path: Path
) -> None:
    workspace = await opened(crib, tmp_path, "a.txt", "prod.env")

    lines = await crib.run("grep", {"pattern": "needle"})
    files = await crib.run("grep_files", {"pattern": "needle"})
    named = await crib.run("glob", {"pattern": "*"})
    asked = await crib.run("grep", {"pattern": "needle", "path": "prod.env"}, on_ask="deny")

    note = "[1 file left out: rules do not allow this call to read it]"
    assert lines["result"]["output"] == f"a.txt:1: needle\n{note}"
    assert files["result"]["output"] == f"{workspace}/a.txt\n{note}"
    assert named["result"]["output"] == "a.txt\nprod.env"
    assert (asked["status"], asked["error"]["code"]) == ("error", "PermissionDenied")


async def test_nothing_found_keeps_its_output(crib: Crib, tmp_path: Path) -> None:
    await opened(crib, tmp_path, "a.txt")

    call = await crib.run("grep_files", {"pattern": "nowhere"})

    assert (call["status"], call["error"]["code"]) == ("error", "ExitCode:1")
    assert call["result"]["output"] == "No matches found."


async def test_a_canceled_search_leaves_no_process(crib: Crib, tmp_path: Path) -> None:
    workspace = await opened(crib, tmp_path, "a.txt")
    await crib.run("grep", {"pattern": "needle"})
    os.mkfifo(workspace / ".gitignore")  # ripgrep waits for somebody to write into it
    live = crib.submit("grep", {"pattern": "needle"})
    await until(searching)

    await crib.cancel(live)

    call: dict[str, Any] = await crib.ended(live)
    assert (call["status"], call["error"]["code"]) == ("error", "Canceled")
    assert searching() == []


def searching() -> list[int]:
    """The searches that run below us."""
    return [pid for pid in process_tree.descendants_of_self() if process_tree._read(f"/proc/{pid}/comm") == b"rg\n"]
