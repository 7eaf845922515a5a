"""What models ask for in a provider's own words, run by our tools, and told back in those words."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError
from app.core.results import Result
from app.core.runs import CallSpec, CommandEnd, ModelCall
from app.core.tools import Context
from app.dispatch.tools.registry import Registry
from app.providers.builtin_calls import call_specs, command_end
from app.tools import BUILTINS

registry = Registry(BUILTINS)


def asked(type: Any, arguments: dict[str, Any], name: str | None = None) -> list[CallSpec]:
    return call_specs(ModelCall(id="c", name=name or type, type=type, arguments=arguments), lambda name: None)


async def run(errand: CallSpec, ctx: Context) -> Result:
    tool = registry.find(errand.tool, None)
    async with asyncio.timeout(20):
        return await tool.run(tool.parse(errand.arguments if errand.input is None else errand.input), ctx)


async def ended(errand: CallSpec, ctx: Context) -> CommandEnd:
    try:
        result: Result | None = await run(errand, ctx)
        error = None
    except CallError as failed:
        result, error = failed.result, failed.as_dict()
    return command_end(None if result is None else asdict(result), error)


async def test_the_commands_of_a_shell_end_each_for_itself(ctx: Context) -> None:
    sent = asked("shell", {"commands": ["echo out; echo err >&2", "exit 3"]})

    assert [await ended(errand, ctx) for errand in sent] == [
        CommandEnd(stdout="out\n", stderr="err\n", exit_code=0),
        CommandEnd(exit_code=3),
    ]


async def test_a_command_that_takes_too_long_has_no_exit_code(ctx: Context) -> None:
    [errand] = asked("shell", {"commands": ["sleep 60"], "timeout_ms": 100})

    assert await ended(errand, ctx) == CommandEnd()


async def test_a_local_shell_has_its_variables_and_its_folder(ctx: Context, workspace: Path) -> None:
    (workspace / "d").mkdir()
    action = {"command": ["sh", "-c", "echo $A; basename $PWD"], "env": {"A": "b c"}, "working_directory": "d"}

    [errand] = asked("local_shell", action)

    assert await ended(errand, ctx) == CommandEnd(stdout="b c\nd\n", exit_code=0)


async def test_a_restart_is_answered_by_a_shell_that_works(ctx: Context) -> None:
    [errand] = asked("function", {"restart": True}, name="bash")

    end = await ended(errand, ctx)

    assert end.exit_code == 0
    assert "new shell" in end.stdout


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        ({"type": "create_file", "path": "d/b.py", "diff": "+new\n"}, {"a.py": "one\ntwo\n", "d/b.py": "new\n"}),
        ({"type": "update_file", "path": "a.py", "diff": "@@\n one\n-two\n+2\n"}, {"a.py": "one\n2\n"}),
        ({"type": "delete_file", "path": "a.py"}, {}),
    ],
)
async def test_a_patch_of_the_provider_changes_the_file(
    ctx: Context, workspace: Path, operation: dict[str, Any], after: dict[str, str]
) -> None:
    (workspace / "a.py").write_text("one\ntwo\n")

    [errand] = asked("apply_patch", operation)
    await run(errand, ctx)

    assert contents(workspace) == after


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}
