"""Cells on the line, behind real walls: the tools they call, the secrets they must not tell, and how they end."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from app.core.calls import CallRequest
from app.core.sessions import Session
from app.tools.exec import js_repl, js_repl_reset, python
from app.tools.files import list_dir, write_file
from tests.support.repl_kernels import HANG
from tests.support.services import Crib, viewed

SECRET = "hunter2-and-some-more"
BLUE = Session("admin", "blue", env={"TOKEN": {"secret": "API"}}, created_at=1, updated_at=1)
GREEN = replace(BLUE, id="green")


@pytest.fixture
async def crib(crib: Crib) -> Crib:
    crib.toys.more = [js_repl.tool, js_repl_reset.tool, python.tool, write_file.tool, list_dir.tool]
    await crib.open()
    await crib.services.secrets.put("admin", "API", SECRET, [])
    assert await crib.services.sessions.create(BLUE)
    assert await crib.services.sessions.create(GREEN)
    return crib


async def run(crib: Crib, tool: str, given: Any, session: Session = BLUE) -> dict[str, Any]:
    payload = {"input": given} if isinstance(given, str) else {"arguments": given}
    live = crib.services.dispatcher.submit(CallRequest(tool=tool, **payload), session)
    async with asyncio.timeout(HANG):
        await live.wait()
    return viewed(live)


async def test_the_tools_a_cell_calls_are_calls_inside_its_own(crib: Crib) -> None:
    code = """
    const write = (path) => tool('write_file', {file_path: path, content: path})
    await Promise.all([write('a'), write('b')])
    const six = await tool('python', {code: '2 * 3'})
    const itself = await tool('js_repl', '1').catch(e => e.code)
    ;[require('fs').readdirSync('.').filter(n => n.length === 1).join(), six.output, itself]
    """

    call = await run(crib, "js_repl", code)
    children = crib.rows("SELECT tool FROM calls WHERE parent = ? ORDER BY id", call["id"])

    assert call["error"] is None
    assert call["result"]["output"] == "[ 'a,b', '6\\n', 'ToolUnavailable' ]\n"
    assert [child["tool"] for child in children] == ["write_file", "write_file", "python", "js_repl"]
    assert call["sandbox"]["backend"] in ("bwrap", "landlock")


async def test_what_cells_print_show_and_raise_has_no_secret_in_it(crib: Crib) -> None:
    shown = await run(crib, "js_repl", "console.log(process.env.TOKEN); process.env.TOKEN")
    raised = await run(crib, "js_repl", "throw new Error(process.env.TOKEN)")
    printed = await run(crib, "python", {"code": "import os; print(os.environ['TOKEN']); os.environ['TOKEN']"})
    failed = await run(crib, "python", {"code": "raise ValueError(os.environ['TOKEN'])"})

    everything = json.dumps([shown, raised, printed, failed, crib.rows("SELECT data FROM events")])
    assert [call["status"] for call in (shown, raised, printed, failed)] == ["completed", "error", "completed", "error"]
    assert SECRET not in everything
    assert shown["result"]["output"].count("\n") == 2
    assert failed["error"]["message"].startswith("ValueError: ")


async def test_a_session_ends_with_its_interpreters_and_no_other_sees_them(crib: Crib) -> None:
    await run(crib, "js_repl", "const mine = process.pid")
    other = await run(crib, "js_repl", "typeof mine", GREEN)
    hanging = crib.services.dispatcher.submit(CallRequest(tool="python", arguments={"code": "while True: pass"}), BLUE)

    async with asyncio.timeout(HANG):
        assert await crib.services.sessions.delete(BLUE)
        await hanging.wait()

    assert other["result"]["output"] == "'undefined'\n"
    assert viewed(hanging)["error"]["code"] == "Canceled"
    assert [name[1] for name in crib.services.dispatcher.resources.kernels._slots] == ["green"]


async def test_a_rule_can_keep_a_model_from_it(crib: Crib) -> None:
    await crib.close()
    crib.settings["rules"] = [{"permission": "js_repl", "action": "deny"}]
    await crib.open()

    denied, allowed = await run(crib, "js_repl", "1"), await run(crib, "python", {"code": "1"})

    assert denied["error"]["code"] == "PermissionDenied"
    assert allowed["result"]["output"] == "1\n"


async def test_a_call_that_times_out_keeps_what_was_printed_and_leaves_nothing_running(crib: Crib) -> None:
    await run(crib, "js_repl", "const before = 1")
    request = CallRequest(tool="js_repl", input="console.log('so far'); while (true) {}", timeout=1.0)
    live = crib.services.dispatcher.submit(request, BLUE)
    async with asyncio.timeout(HANG):
        await live.wait()

    after = await run(crib, "js_repl", "typeof before")

    assert viewed(live)["error"]["code"] == "Timeout"
    assert viewed(live)["result"]["output"] == "so far\n"
    assert after["result"]["output"] == (
        "[The call before was stopped and the interpreter with it, so what was defined in it is gone.]\n'undefined'\n"
    )


async def test_a_cell_that_takes_too_long_is_interrupted_behind_walls_too(crib: Crib) -> None:
    await run(crib, "python", {"code": "kept = 1"})

    over = await run(crib, "python", {"code": "import time; time.sleep(600)", "timeout_ms": 500})

    assert over["error"]["code"] == "Timeout"
    assert (await run(crib, "python", {"code": "kept"}))["result"]["output"] == "1\n"
