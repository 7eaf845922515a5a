"""exec_command, with real processes in a real session."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.core.rules import Need
from app.core.tools import Effect
from app.dispatch.session import terminal_reader
from app.sandbox.files.workspace import LocalWorkspace
from app.tools.exec import exec_command
from app.tools.exec.exec_command import Args
from app.tools.files import apply_patch
from tests.support.exec_sessions import AT_SIGN, TOOLS, let_go
from tests.support.services import HANG, Crib
from tests.support.toy_tools import Toys

HEAD = re.compile(
    r"Chunk ID: [0-9a-f]{6}\nWall time: \d+\.\d{4} seconds\nProcess (exited with code|running with session ID) (\d+)\n"
    r"Original token count: (\d+)\nOutput:\n(.*)",
    re.DOTALL,
)


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more = [*TOOLS, apply_patch.tool]
    return toys


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_reader, "GRACE_SECONDS", 0.1)


@pytest.fixture
async def open_crib(crib: Crib) -> AsyncIterator[Crib]:
    yield await crib.open()
    let_go(crib)


async def run(crib: Crib, cmd: str, **more: Any) -> dict[str, Any]:
    return await crib.run("exec_command", {"cmd": cmd, "login": False, **more})


def read(call: dict[str, Any]) -> tuple[str, int, int, str]:
    """What the header says, and the output."""
    found = HEAD.fullmatch(call["result"]["output"])
    assert found, call["result"]["output"]
    return found[1], int(found[2]), int(found[3]), found[4]


async def test_a_command_that_ends_is_told_whole(open_crib: Crib) -> None:
    call = await run(open_crib, "echo out; echo err >&2")

    state, code, tokens, output = read(call)
    assert call["status"] == "completed"
    assert (state, code, tokens) == ("exited with code", 0, 2)
    assert sorted(output.splitlines()) == ["err", "out"]
    structured = call["result"]["structured"]
    assert structured.pop("wall_time") >= 0
    assert structured == {"session_id": None, "exit_code": 0, "output": output, "original_token_count": 2}
    assert call["result"]["title"] == "echo out; echo err >&2"
    assert call["sandbox"] is not None


async def test_it_answers_as_soon_as_the_command_has_ended(open_crib: Crib) -> None:
    async with asyncio.timeout(HANG):
        call = await run(open_crib, "true", yield_time_ms=30_000)

    assert read(call)[0] == "exited with code"


@pytest.mark.parametrize(
    ("cmd", "code"), [("exit 3", 3), ("no-such-program-at-all", 127), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
async def test_another_exit_code_is_the_error_and_the_output_stays(open_crib: Crib, cmd: str, code: int) -> None:
    call = await run(open_crib, f"echo before; {cmd}")

    state, told, _, output = read(call)
    assert call["error"]["code"] == f"ExitCode:{code}"
    assert (state, told) == ("exited with code", code)
    assert output.startswith("before\n")


async def test_what_goes_on_is_told_so_far_and_gets_a_number(open_crib: Crib) -> None:
    call = await run(open_crib, f"echo so far; {AT_SIGN}", yield_time_ms=250)

    state, number, _, output = read(call)
    assert call["status"] == "completed"
    assert state == "running with session ID"
    assert 1000 <= number <= 99_999
    assert output == "so far\n"
    assert call["result"]["structured"]["session_id"] == number
    assert call["result"]["structured"]["exit_code"] is None


async def test_a_child_in_the_background_that_holds_the_pipe_is_not_waited_for(open_crib: Crib) -> None:
    async with asyncio.timeout(HANG):
        call = await run(open_crib, "(sleep 30 &); echo bg", yield_time_ms=30_000)

    assert read(call) == ("exited with code", 0, 1, "bg\n")


async def test_without_a_tty_stdin_is_closed_and_with_one_it_is_a_terminal(open_crib: Crib) -> None:
    script = "test -t 0 && tty=yes || tty=no; test -t 1 && echo $tty yes || { cat; echo $tty no; }"

    assert read(await run(open_crib, script))[3] == "no no\n"
    assert read(await run(open_crib, script, tty=True))[3] == "yes yes\r\n"


async def test_a_terminal_is_left_raw_and_has_24_rows_of_80_columns(open_crib: Crib) -> None:
    call = await run(open_crib, "stty size; printf '\\033[1mbold\\033[0m\\n'", tty=True)

    assert read(call)[3] == "24 80\r\n\x1b[1mbold\x1b[0m\r\n"


async def test_an_empty_command_does_nothing_well(open_crib: Crib) -> None:
    assert read(await run(open_crib, "")) == ("exited with code", 0, 0, "")


async def test_of_much_output_the_middle_is_left_out_and_said(open_crib: Crib) -> None:
    call = await run(open_crib, "seq 1 20000", max_output_tokens=100)

    whole = "".join(f"{number}\n" for number in range(1, 20_001))
    _, _, tokens, output = read(call)
    warning, lines, blank, text = output.split("\n", 3)
    head, mark, tail = re.split("(…[0-9]+ tokens truncated…)", text)
    assert tokens == -(-len(whole) // 4)
    assert warning == f"Warning: truncated output (original token count: {tokens})"
    assert (lines, blank) == ("Total output lines: 20000", "")
    assert (head, tail) == (whole[:200], whole[-200:])
    assert mark == f"…{-(-(len(whole) - 400) // 4)} tokens truncated…"
    assert call["result"]["metadata"]["truncated"] is True
    assert call["result"]["structured"]["output"] == text


async def test_it_runs_where_and_by_what_it_is_told(open_crib: Crib) -> None:
    await run(open_crib, "mkdir -p sub/deep")

    where = await run(open_crib, "basename $PWD", workdir="sub/deep")
    by = await run(open_crib, "echo $0", shell="/bin/sh")

    assert read(where)[3] == "deep\n"
    assert read(by)[3] == "sh\n"


@pytest.mark.parametrize("shell", ["python3", "/usr/bin/env", "", "./bash.sh"])
def test_only_a_shell_is_a_shell(shell: str) -> None:
    with pytest.raises(InvalidArgs, match="`shell` can be one of bash"):
        exec_command.tool.parse({"cmd": "true", "shell": shell})


def test_a_shell_is_never_taken_from_the_workspace() -> None:
    args: Args = exec_command.tool.parse({"cmd": "true", "shell": "./own/bash", "login": True})

    assert args.argv == ["bash", "-lc", "true"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, 10), (1, 0.25), ("1", 0.25), (250, 0.25), (1500.5, 1.5005), ("1500", 1.5), (30_001, 30), (-5, 0.25)],
)
def test_the_time_to_wait_stays_within_its_bounds(given: Any, seconds: float) -> None:
    raw = {"cmd": "true"} if given is None else {"cmd": "true", "yield_time_ms": given}

    assert exec_command.tool.parse(raw).seconds == seconds


async def test_the_session_has_its_environment_and_programs_write_without_a_screen(open_crib: Crib) -> None:
    call = await run(open_crib, "echo $TERM $NO_COLOR $PAGER")

    assert read(call)[3] == "dumb 1 cat\n"


async def test_a_folder_that_is_not_there_is_said(open_crib: Crib) -> None:
    call = await run(open_crib, "pwd", workdir="no/such")

    assert call["error"]["code"] == "ENOENT"
    assert "no/such" in call["error"]["message"]


async def test_a_patch_is_applied_by_the_tool_that_does_that(open_crib: Crib) -> None:
    patch = "*** Begin Patch\n*** Add File: made.txt\n+by a patch\n*** End Patch"

    call = await run(open_crib, f"apply_patch <<'EOF'\n{patch}\nEOF\n", workdir="sub")
    made = await run(open_crib, "cat sub/made.txt")

    assert read(call)[3] == "Success. Updated the following files:\nA sub/made.txt\n"
    assert call["result"]["structured"]["exit_code"] == 0
    assert read(made)[3] == "by a patch\n"


def test_what_a_line_needs_is_read_off_it(tmp_path: Path) -> None:
    scope = LocalWorkspace(tmp_path)
    args = exec_command.tool.parse({"cmd": "git status && echo $(rm -r x) > out.txt"})

    assert exec_command.tool.needs(args, scope) == [
        Need("shell", "git status"),
        Need("shell", "echo $(rm -r x)"),
        Need("shell", "rm -r x"),
        Need("edit", "out.txt"),
    ]
    assert exec_command.tool.effect_of(args) is Effect.WRITE
    assert exec_command.tool.effect_of(exec_command.tool.parse({"cmd": "ls"})) is Effect.READ
    scope.close()


@pytest.mark.parametrize(
    ("cmd", "tty", "is_unclear"),
    [
        ("bash", True, False),
        ("exec /bin/bash --norc -i", True, False),
        ("env A=b sh -l", True, False),
        ("bash", False, True),
        ("cat x | bash", True, True),
        ("bash < x", True, True),
        ("bash --rcfile x -i", True, True),
        ("bash; bash", True, True),
        ("$SHELL", True, True),
    ],
)
def test_a_shell_at_a_terminal_is_no_riddle(tmp_path: Path, cmd: str, tty: bool, is_unclear: bool) -> None:
    scope = LocalWorkspace(tmp_path)
    args = exec_command.tool.parse({"cmd": cmd, "tty": tty})

    assert any(need.is_unclear for need in exec_command.tool.needs(args, scope)) is is_unclear
    scope.close()


async def test_to_run_without_walls_is_asked_with_the_reason(open_crib: Crib) -> None:
    asked = {"cmd": "true", "login": False, "sandbox_permissions": "require_escalated"}

    silent = await open_crib.run("exec_command", asked)
    refused = await open_crib.run("exec_command", {**asked, "justification": "Why not?"}, on_ask="deny")

    assert silent["error"]["code"] == "InvalidArgs"
    assert refused["error"]["code"] == "PermissionDenied"
    assert refused["error"]["details"]["permission"] == "escalate"
