"""shell: a program from its start to its end, and everything it wrote on the way."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, InvalidArgs, OutsideWorkspace, ProgramFailed, ResourceLimit, TimedOut
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, ExitStatus, Process
from app.core.tools import Context
from app.tools.exec.shell import tool
from tests.support.services import HANG
from tests.tools.conftest import ToyContext


async def call(ctx: Context, *command: str, **more: Any) -> Result:
    async with asyncio.timeout(HANG * 2):
        return await tool.run(tool.parse({"command": list(command)} | more), ctx)


async def failed(ctx: Context, *command: str, **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await call(ctx, *command, **more)
    return caught.value


def result_of(error: CallError) -> Result:
    assert error.result is not None
    return error.result


def python(source: str) -> tuple[str, str, str]:
    return sys.executable, "-c", source


async def test_it_answers_with_exit_code_time_and_output(ctx: Context) -> None:
    result = await call(ctx, "printf", "one\\ntwo\\n")

    first, second, *rest = result.output.split("\n")
    assert first == "Exit code: 0"
    assert second.startswith("Wall time: 0.")
    assert second.endswith(" seconds")
    assert rest == ["Output:", "one", "two", ""]
    assert result.title == "printf 'one\\ntwo\\n'"
    assert result.structured == {"stdout": "one\ntwo\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    facts = {name: value for name, value in result.metadata.items() if name not in ("duration_ms", "sandbox")}
    assert facts == {
        "exit_code": 0,
        "timed_out": False,
        "truncated": False,
        "original_size": 8,
        "truncated_size": 8,
        "omitted": 0,
    }


async def test_both_streams_are_told_as_they_come_and_kept_apart_too(ctx: Context, toy: ToyContext) -> None:
    result = await call(ctx, "sh", "-c", "echo out; sleep 0.05; echo err >&2; sleep 0.05; echo again")

    assert toy.printed == [("out\n", "stdout"), ("err\n", "stderr"), ("again\n", "stdout")]
    assert result.output.endswith("Output:\nout\nerr\nagain\n")
    assert (result.structured["stdout"], result.structured["stderr"]) == ("out\nagain\n", "err\n")


async def test_another_exit_code_than_0_is_an_error_that_keeps_the_output(ctx: Context) -> None:
    error = await failed(ctx, "sh", "-c", "echo so far; exit 3")

    assert isinstance(error, ProgramFailed)
    assert (error.code, error.message) == ("ExitCode:3", "The command ended with exit code 3.")
    assert result_of(error).output.startswith("Exit code: 3\n")
    assert result_of(error).output.endswith("Output:\nso far\n")
    assert result_of(error).metadata["exit_code"] == 3
    assert result_of(error).structured["outcome"] == {"type": "exit", "exit_code": 3}


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
async def test_a_signal_is_128_and_its_number(ctx: Context, name: str, code: int) -> None:
    error = await failed(ctx, "sh", "-c", f"ulimit -c 0; kill -{name} $$")

    assert error.code == f"ExitCode:{code}"
    assert error.message == f"The command ended with exit code {code} (SIG{name})."


async def test_what_takes_too_long_is_stopped_and_its_output_kept(ctx: Context) -> None:
    error = await failed(ctx, "sh", "-c", "echo begun; exec sleep 60", timeout_ms=300)

    assert isinstance(error, TimedOut)
    assert error.message.startswith("The command was stopped after 0.3 s")
    result = result_of(error)
    assert result.output.startswith("Exit code: 124\n")
    assert result.output.endswith("Output:\ncommand timed out after 300 milliseconds\nbegun\n")
    assert result.metadata["timed_out"] is True
    assert result.structured == {"stdout": "begun\n", "stderr": "", "outcome": {"type": "timeout"}}


async def test_what_it_writes_while_it_is_being_stopped_is_kept(ctx: Context) -> None:
    script = "trap 'head -c 300000 /dev/zero | tr \"\\\\0\" x; echo; echo bye; exit' TERM; echo begun; sleep 60 & wait"

    error = await failed(ctx, "bash", "-c", script, timeout_ms=300)

    assert result_of(error).output.endswith("\nbye\n")
    assert result_of(error).metadata["original_size"] == len("begun\n") + 300_001 + len("bye\n")


async def test_what_says_nothing_for_too_long_is_stopped(ctx: Context) -> None:
    ctx.extra["silence"] = 0.4

    error = await failed(ctx, "sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 0.2; done; exec sleep 60")

    assert isinstance(error, TimedOut)
    assert "wrote nothing for 0.4 s" in error.message
    assert result_of(error).output.endswith("Output:\ncommand stopped after 0.4 seconds without output\n1\n2\n3\n4\n")


async def test_a_program_that_closed_its_output_is_still_waited_for(ctx: Context, workspace: Path) -> None:
    await call(ctx, "sh", "-c", "exec >&- 2>&-; sleep 0.2; touch done")

    assert (workspace / "done").exists()


async def test_a_child_in_the_background_does_not_hold_the_answer(ctx: Context) -> None:
    result = await call(ctx, "sh", "-c", "sleep 60 & echo started")

    assert result.output.endswith("Output:\nstarted\n")


async def test_a_canceled_program_is_ended_kindly_and_its_last_words_are_told(
    ctx: Context, toy: ToyContext, workspace: Path
) -> None:
    running = asyncio.create_task(
        call(ctx, "bash", "-c", "trap 'echo bye; touch ended; exit' TERM; echo begun; sleep 60 & wait")
    )
    async with asyncio.timeout(HANG):
        while not toy.printed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert toy.printed == [("begun\n", "stdout"), ("bye\n", "stdout")]
    assert (workspace / "ended").exists()


async def test_what_is_no_utf8_is_replaced_also_at_the_end(ctx: Context, toy: ToyContext) -> None:
    result = await call(ctx, *python(r"import os; os.write(1, b'a\xff\xe2\x82'); os.write(1, b'\xac\0\xf0\x9f')"))

    assert result.structured["stdout"] == "a\ufffd€\0\ufffd"
    assert "".join(text for text, _ in toy.printed) == "a\ufffd€\0\ufffd"


async def test_of_much_output_both_ends_are_shown_and_the_rest_is_counted(ctx: Context, toy: ToyContext) -> None:
    result = await call(ctx, "seq", "1", "20000")

    size = sum(len(f"{number}\n") for number in range(1, 20_001))
    head, total, label, *lines = result.output.split("\n")[0], *result.output.split("\n")[2:]
    omitted = result.metadata["omitted"]
    assert (head, total, label) == ("Exit code: 0", "Total output lines: 20000", "Output:")
    assert lines[:2] == ["1", "2"]
    assert lines[-3:] == ["19999", "20000", ""]
    assert f"[{omitted} bytes left out here; all of it is in the output of the call]" in lines
    assert (result.metadata["truncated"], result.metadata["original_size"]) == (True, size)
    assert result.metadata["truncated_size"] == size - omitted <= 40_000
    assert "".join(text for text, _ in toy.printed) == "".join(f"{number}\n" for number in range(1, 20_001))


@pytest.mark.parametrize("limit", ["memory", "processes"])
async def test_who_takes_too_much_is_told_so(ctx: Context, toy: ToyContext, limit: Any) -> None:
    plain = toy.start

    async def start(command: Command) -> Process:
        child = await plain(command)
        wait = child.wait

        async def ended() -> ExitStatus:
            return ExitStatus((await wait()).code, limit)

        child.wait = ended  # type: ignore[method-assign]
        return child

    toy.start = start  # type: ignore[method-assign]

    error = await failed(ctx, "sh", "-c", "echo much; kill -9 $$")

    assert isinstance(error, ResourceLimit)
    assert error.details == {"limit": limit}
    assert result_of(error).metadata["exit_code"] == 137
    assert result_of(error).output.endswith("Output:\nmuch\n")


async def test_it_runs_in_its_folder_with_the_sessions_environment_and_no_input(
    ctx: Context, toy: ToyContext, workspace: Path
) -> None:
    (workspace / "sub").mkdir()
    toy.env = {"COLOUR": "green", "PAGER": "less"}

    result = await call(ctx, "sh", "-c", "pwd; echo $COLOUR $PAGER $TERM; cat; echo end", workdir="sub")

    assert result.structured["stdout"] == f"{workspace}/sub\ngreen less dumb\nend\n"
    inside = await call(ctx, "pwd", workdir=str(workspace / "sub"))
    assert inside.structured["stdout"] == f"{workspace}/sub\n"


async def test_a_folder_outside_of_the_workspace_is_refused(ctx: Context) -> None:
    with pytest.raises(OutsideWorkspace):
        tool.needs(tool.parse({"command": ["ls"], "workdir": "/etc"}), ctx.workspace)


def test_numbers_may_come_as_text_and_a_line_for_words() -> None:
    args = tool.parse({"command": "ls | wc -l", "timeout_ms": "5000"})

    assert (args.command, args.timeout_ms) == (["bash", "-lc", "ls | wc -l"], 5000)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"command": []}, "`command` is empty"),
        ({"command": ["", "x"]}, "`command` is empty"),
        ({"command": ""}, "`command`"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["ls"], "timeout_ms": 0}, "greater than 0"),
        ({"command": ["ls"], "timeout_ms": "Infinity"}, "finite"),
        ({"command": ["ls"], "sandbox_permissions": "none"}, "`sandbox_permissions`"),
        ({"command": ["ls"], "sandbox_permissions": "require_escalated"}, "`justification`"),
        ({"command": ["ls"], "sandbox_permissions": "require_escalated", "justification": " "}, "`justification`"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidArgs, match=part):
        tool.parse(arguments)


def test_without_walls_it_needs_another_permission(ctx: Context) -> None:
    args = tool.parse(
        {
            "command": ["git", "push", "origin"],
            "sandbox_permissions": "require_escalated",
            "justification": " May I publish? ",
            "prefix_rule": ["git", "push"],
        }
    )

    [need] = tool.needs(args, ctx.workspace)

    assert need == Need("escalate", "git push origin")
    assert need.always == "git push *"
    assert tool.explains is not None
    assert tool.explains(args) == {"justification": "May I publish?"}


async def test_without_walls_the_process_is_started_so(ctx: Context, toy: ToyContext) -> None:
    await call(ctx, "true", sandbox_permissions="require_escalated", justification="May I?")
    await call(ctx, "true", sandbox_permissions="use_default", justification="Not needed.")

    assert [command.is_escalated for command in toy.commands] == [True, False]


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": ["echo", "hi"], "workdir": ".", "timeout": 1000},
        {"command": ["echo", "hi"], "working_directory": ".", "timeout_ms": 1000},
    ],
)
def test_peers_names_of_the_same_arguments_are_understood(arguments: dict[str, Any]) -> None:
    for alias in tool.aliases:
        assert alias.adapt is not None
        args = tool.parse(alias.adapt(arguments))
        assert (args.command, args.workdir, args.timeout_ms) == (["echo", "hi"], ".", 1000)
