"""Commands through the door: whatever they do, the call ends with what they wrote."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.dispatch.events.output_throttle import BURST, PER_SECOND
from app.tools import BUILTINS
from tests.support.ask_calls import answer, asked_by, ended
from tests.support.services import RunningService, kinds, listening, until
from tests.support.toy_tools import Toys

PATCH = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"


class Builtins(Toys):
    """No toys: the tools a service really has."""

    @property
    def tools(self) -> Any:
        return BUILTINS


@pytest.fixture
def settings() -> dict[str, Any]:
    """What a test sets before the service opens."""
    return {}


@pytest.fixture
async def service(data_dir: Path, settings: dict[str, Any]) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, Builtins(), **settings)
    await service.open()
    yield service
    await service.close()


async def call(client: httpx.AsyncClient, *command: str, **more: Any) -> dict[str, Any]:
    """A command, from its request to its end."""
    body = {"tool": "shell", "arguments": {"command": list(command)} | more}
    made = await client.post("/v1/calls", json=body)
    assert made.status_code == 200, made.text
    view: dict[str, Any] = made.json()
    return view


async def output(client: httpx.AsyncClient, id: str) -> tuple[bytes, int, int]:
    """The stored output, how much it is, and how much was dropped."""
    got = await client.get(f"/v1/calls/{id}/output")
    assert got.status_code == 200
    return got.content, int(got.headers["toolcrib-output-total"]), int(got.headers["toolcrib-output-dropped"])


def root(service: RunningService) -> Path:
    return Path(service.services.workspaces.home)


async def test_a_command_that_fails_is_an_answer_with_its_output(client: httpx.AsyncClient) -> None:
    view = await call(client, "sh", "-c", "echo out; echo err >&2; exit 3")

    assert (view["status"], view["error"]["code"]) == ("error", "ExitCode:3")
    assert view["error"]["details"] == {"exit_code": 3}
    assert view["result"]["output"].startswith("Exit code: 3\nWall time: ")
    assert view["result"]["metadata"]["exit_code"] == 3
    assert view["result"]["structured"] == {
        "stdout": "out\n",
        "stderr": "err\n",
        "outcome": {"type": "exit", "exit_code": 3},
    }
    assert sorted((await output(client, view["id"]))[0].split()) == [b"err", b"out"]


async def test_the_record_says_behind_which_walls_it_ran(client: httpx.AsyncClient) -> None:
    view = await call(client, "true")

    assert view["sandbox"] == view["result"]["metadata"]["sandbox"]
    assert (view["sandbox"]["profile"], view["sandbox"]["network"]) == ("workspace-write", "none")


@pytest.mark.parametrize("settings", [{"sandbox": {"processes": 100}}])
async def test_a_command_that_takes_too_much_keeps_its_output(client: httpx.AsyncClient) -> None:
    """The kernel's own limit is for all of one user and four times as high, so that others have room beside it."""
    view = await call(client, "bash", "-c", "echo begun; for i in $(seq 1 150); do sleep 30 & done; wait")

    assert (view["error"]["code"], view["error"]["details"]) == ("ResourceLimit", {"limit": "processes"})
    assert view["result"]["structured"] == {
        "stdout": "begun\n",
        "stderr": "",
        "outcome": {"type": "exit", "exit_code": 137},
    }


async def test_a_command_that_wrote_nothing_has_no_output(client: httpx.AsyncClient) -> None:
    view = await call(client, "true")

    assert view["status"] == "completed"
    assert view["result"]["output"].startswith("Exit code: 0\n")
    assert await output(client, view["id"]) == (b"", 0, 0)


async def test_what_takes_too_long_keeps_its_output(client: httpx.AsyncClient) -> None:
    view = await call(client, "sh", "-c", "echo begun; exec sleep 60", timeout_ms=300)

    assert (view["error"]["code"], view["error"]["retryable"]) == ("Timeout", True)
    assert view["result"]["output"].endswith("command timed out after 300 milliseconds\nbegun\n")
    assert await output(client, view["id"]) == (b"begun\n", 6, 0)


async def test_what_is_canceled_keeps_its_output(client: httpx.AsyncClient, service: RunningService) -> None:
    body = {"tool": "shell", "arguments": {"command": ["sh", "-c", "echo begun; exec sleep 60"]}}
    id = (await client.post("/v1/calls", params={"wait": 0}, json=body)).json()["id"]
    await until(lambda: service.rows("SELECT 1 FROM outputs WHERE call = ?", id))

    view = (await client.post(f"/v1/calls/{id}/cancel")).json()

    assert (view["status"], view["error"]["code"]) == ("error", "Canceled")
    assert view["result"]["output"] == "begun\n"
    assert await output(client, id) == (b"begun\n", 6, 0)


async def test_the_time_limit_of_the_call_counts_too(client: httpx.AsyncClient) -> None:
    body = {"tool": "shell", "arguments": {"command": ["sh", "-c", "echo begun; exec sleep 60"]}, "timeout": 0.5}
    view = (await client.post("/v1/calls", json=body)).json()

    assert (view["error"]["code"], view["result"]["output"]) == ("Timeout", "begun\n")


async def test_a_child_in_the_background_does_not_hold_the_answer(client: httpx.AsyncClient) -> None:
    view = await call(client, "bash", "-c", "sleep 60 & echo started")

    assert (view["status"], view["result"]["structured"]["stdout"]) == ("completed", "started\n")


async def test_bytes_that_are_no_text_are_replaced_in_the_store_too(client: httpx.AsyncClient) -> None:
    view = await call(client, "printf", "a\\377b\\000c\\342\\202")

    kept = "a\ufffdb\0c\ufffd".encode()
    assert await output(client, view["id"]) == (kept, len(kept), 0)
    assert view["result"]["structured"]["stdout"] == kept.decode()


@pytest.mark.parametrize("settings", [{"output_limit": 100_000}])
async def test_beyond_the_limit_it_is_said_exactly_how_much_is_missing(client: httpx.AsyncClient) -> None:
    view = await call(client, "seq", "1", "200000")

    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    kept, total, dropped = await output(client, view["id"])
    assert (kept, total, dropped) == (whole[:100_000], 100_000, len(whole) - 100_000)
    assert view["result"]["metadata"]["original_size"] == len(whole)
    assert view["result"]["output"].endswith("\n199999\n200000\n")


async def test_output_is_told_live_in_few_pieces_and_without_a_gap(client: httpx.AsyncClient) -> None:
    script = "for i in $(seq 1 60); do echo out $i; echo err $i >&2; sleep 0.01; done"
    body = {"tool": "shell", "arguments": {"command": ["bash", "-c", script]}}
    begun = asyncio.get_running_loop().time()

    stream = listening(client, "/v1/calls", method="POST", json=body, headers={"Accept": "text/event-stream"})
    async with stream as told:
        frames = await told.rest()

    seconds = asyncio.get_running_loop().time() - begun
    pieces = [frame.data["data"] for frame in frames if frame.event == "call.output"]
    at = 0
    for piece in pieces:
        assert piece["offset"] == at
        at += len(piece["text"].encode())
    kept, total, _ = await output(client, frames[0].data["call"])
    assert "".join(piece["text"] for piece in pieces).encode() == kept
    assert total == at == sum(len(f"out {i}\nerr {i}\n") for i in range(1, 61))
    assert 1 < len(pieces) <= BURST + PER_SECOND * seconds
    assert kinds(frames)[-1] == "call.completed"


async def test_a_command_that_is_a_patch_is_run_as_the_tool(client: httpx.AsyncClient, service: RunningService) -> None:
    (root(service) / "sub").mkdir()
    command = f"cd sub && apply_patch <<'EOF'\n{PATCH}EOF"

    body = {"tool": "shell_command", "arguments": {"command": command}}
    view = (await client.post("/v1/calls", json=body)).json()

    assert view["status"] == "completed", view
    assert (root(service) / "sub" / "a.txt").read_text() == "hello\n"
    assert view["result"]["output"].endswith("Output:\nSuccess. Updated the following files:\nA sub/a.txt\n")
    [child] = service.rows("SELECT tool, status FROM calls WHERE parent = ?", view["id"])
    assert child == {"tool": "apply_patch", "status": "completed"}


async def test_a_patch_needs_what_the_tool_needs(client: httpx.AsyncClient, service: RunningService) -> None:
    await client.post("/v1/rules", json={"permission": "edit", "pattern": "a.txt", "action": "deny", "scope": "global"})

    view = await call(client, "apply_patch", PATCH)

    assert (view["status"], view["error"]["code"]) == ("error", "PermissionDenied")
    assert not (root(service) / "a.txt").exists()


async def test_a_patch_that_does_not_fit_says_so(client: httpx.AsyncClient) -> None:
    body = {"tool": "shell_command", "arguments": {"command": "apply_patch '*** Begin Patch\n*** End Patch'"}}
    view = (await client.post("/v1/calls", json=body)).json()

    assert view["error"]["code"] == "InvalidArgs"


def escalating(command: str, **more: Any) -> dict[str, Any]:
    wish = {"sandbox_permissions": "require_escalated", "justification": "May I see the real thing?"}
    return {"tool": "shell_command", "arguments": {"command": command} | wish | more}


async def test_to_run_without_walls_is_asked_with_its_reason(client: httpx.AsyncClient) -> None:
    id, ask = await asked_by(client, escalating("echo hi"))

    assert ask["needs"] == [{"permission": "escalate", "pattern": "echo hi"}]
    assert ask["metadata"] == {"justification": "May I see the real thing?"}
    await answer(client, ask, decision="deny", message="No.")
    view = await ended(client, id)
    assert (view["error"]["code"], view["result"]) == ("PermissionDenied", None)


async def test_an_always_for_the_proposed_words_counts_for_what_begins_so(client: httpx.AsyncClient) -> None:
    id, ask = await asked_by(client, escalating("echo hi", prefix_rule=["echo", "hi"]))
    assert ask["always"] == [{"permission": "escalate", "pattern": "echo hi *", "action": "allow"}]

    await answer(client, ask, decision="allow_always")
    view = await ended(client, id)
    assert (view["result"]["structured"]["stdout"], view["sandbox"]["escalated"]) == ("hi\n", True)
    again = (await client.post("/v1/calls", json=escalating("echo hi there"))).json()
    _, other = await asked_by(client, escalating("echo hi; touch x"))

    assert again["status"] == "completed"
    assert other["needs"] == [{"permission": "escalate", "pattern": "touch x"}]
    await answer(client, other, decision="deny")


async def test_what_cannot_be_read_is_asked(client: httpx.AsyncClient) -> None:
    body = {"tool": "shell_command", "arguments": {"command": "$WHAT now"}, "on_ask": "deny"}
    view = (await client.post("/v1/calls", json=body)).json()

    assert (view["error"]["code"], view["error"]["details"]["pattern"]) == ("PermissionDenied", "$WHAT now")


def batch(*lines: str) -> dict[str, Any]:
    return {"calls": [{"tool": "shell_command", "arguments": {"command": line}} for line in lines]}


async def test_commands_that_only_read_run_beside_each_other(service: RunningService) -> None:
    """Each of them ends only when something is written that is not written before both run."""
    pipes = [root(service) / name for name in ("one", "two")]
    for pipe in pipes:
        os.mkfifo(pipe)
        pipe.chmod(0o666)
    answering = asyncio.create_task(service.client.post("/v1/calls/batch", json=batch("cat one", "head -n 1 two")))
    await until(lambda: len(service.rows("SELECT 1 FROM events WHERE type = 'call.running'")) == 2)

    for pipe in pipes:
        await asyncio.to_thread(pipe.write_text, f"{pipe.name}\n")

    views = (await answering).json()["data"]
    assert [view["result"]["structured"]["stdout"] for view in views] == ["one\n", "two\n"]


async def test_commands_that_may_write_run_one_after_the_other(service: RunningService) -> None:
    views = (await service.client.post("/v1/calls/batch", json=batch("sleep 0.1; echo a > x", "cat x"))).json()["data"]

    assert views[1]["result"]["structured"]["stdout"] == "a\n"
    rows = service.rows("SELECT call, type FROM events WHERE type IN ('call.running', 'call.completed') ORDER BY seq")
    ids = [view["id"] for view in views]
    assert [(ids.index(row["call"]), row["type"].removeprefix("call.")) for row in rows] == [
        (0, "running"),
        (0, "completed"),
        (1, "running"),
        (1, "completed"),
    ]


async def test_a_model_is_offered_the_shell_it_was_taught(client: httpx.AsyncClient) -> None:
    async def offered(**params: str) -> set[str]:
        names = {tool["name"] for tool in (await client.get("/v1/tools", params=params)).json()["data"]}
        return names & {"shell", "shell_command", "exec_command", "write_stdin"}

    assert await offered(model="gpt-5") == {"shell"}
    assert await offered(model="claude-sonnet-4-5") == {"shell_command"}
    assert await offered() == {"shell_command"}
    assert (await call(client, "true"))["status"] == "completed"


@pytest.mark.parametrize("settings", [{"shell": "disabled"}])
async def test_an_operator_can_switch_the_shell_tools_off(client: httpx.AsyncClient) -> None:
    listed = {tool["name"] for tool in (await client.get("/v1/tools")).json()["data"]}
    view = await call(client, "true")

    assert not listed & {"shell", "shell_command"}
    assert view["error"]["code"] == "ToolUnavailable"
    assert "switched off" in view["error"]["message"]


@pytest.mark.parametrize("settings", [{"silence_timeout": 0.4}])
async def test_an_operator_can_say_how_long_a_command_may_be_silent(client: httpx.AsyncClient) -> None:
    view = await call(client, "sh", "-c", "echo begun; exec sleep 60")

    assert view["error"]["code"] == "Timeout"
    assert "wrote nothing for 0.4 s" in view["error"]["message"]
    assert view["result"]["structured"]["stdout"] == "begun\n"
