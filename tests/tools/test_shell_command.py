"""shell_command: a line as a shell reads it."""

import asyncio
import errno
from typing import Any

import pytest

from app.core.errors import FileFailed, InvalidArgs, ProgramFailed
from app.core.results import Result
from app.core.sandbox import Command, Process
from app.core.tools import Context
from app.tools.exec.shell_command import tool
from tests.support.services import HANG
from tests.tools.conftest import ToyContext


async def call(ctx: Context, command: str, **more: Any) -> Result:
    async with asyncio.timeout(HANG * 2):
        return await tool.run(tool.parse({"command": command} | more), ctx)


async def test_a_line_runs_in_a_shell(ctx: Context) -> None:
    result = await call(ctx, "for word in a b; do echo $word; done | tr a-z A-Z && printf end")

    assert result.structured["stdout"] == "A\nB\nend"
    assert result.title == "for word in a b; do echo $word; done | tr a-z A-Z && printf end"


async def test_a_command_that_is_not_there_is_127(ctx: Context) -> None:
    with pytest.raises(ProgramFailed) as caught:
        await call(ctx, "no-such-command-anywhere")

    assert caught.value.code == "ExitCode:127"


@pytest.mark.parametrize(("more", "told"), [({}, "yes\n"), ({"login": False}, "no\n")])
async def test_it_is_a_login_shell_unless_told_otherwise(ctx: Context, more: dict[str, Any], told: str) -> None:
    result = await call(ctx, "shopt -q login_shell && echo yes || echo no", **more)

    assert result.structured["stdout"] == told


async def test_without_bash_another_shell_runs_it(ctx: Context, toy: ToyContext) -> None:
    plain = toy.start

    async def start(command: Command) -> Process:
        if command.argv[0] == "bash":
            raise FileFailed(errno.ENOENT, "bash")
        return await plain(command)

    toy.start = start  # type: ignore[method-assign]

    result = await call(ctx, "echo $0")

    assert result.structured["stdout"] == "sh\n"


async def test_what_else_cannot_be_started_is_told(ctx: Context, toy: ToyContext) -> None:
    async def start(command: Command) -> Process:
        raise FileFailed(errno.EACCES, "bash")

    toy.start = start  # type: ignore[method-assign]

    with pytest.raises(FileFailed) as caught:
        await call(ctx, "true")
    assert caught.value.code == "EACCES"


@pytest.mark.parametrize(
    ("given", "line"),
    [(["bash", "-lc", "ls | wc"], "ls | wc"), (["echo", "a b"], "echo 'a b'"), ("echo hi", "echo hi")],
)
def test_words_mean_the_line_they_make(given: Any, line: str) -> None:
    assert tool.parse({"command": given}).command == line


@pytest.mark.parametrize("command", ["", " \n ", "a\0b"])
def test_nothing_to_run_is_refused(command: str) -> None:
    with pytest.raises(InvalidArgs, match="`command`"):
        tool.parse({"command": command})


def test_it_is_known_as_bash_too() -> None:
    [alias] = tool.aliases
    assert alias.adapt is not None

    args = tool.parse(alias.adapt({"command": "ls", "timeout": 5000, "description": "List", "workdir": "src"}))

    assert alias.name == "bash"
    assert (args.command, args.timeout_ms, args.workdir) == ("ls", 5000, "src")
