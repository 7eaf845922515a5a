"""Pipes: real programs, started by a real spawner, that speak well or badly."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from app.mcp.client.interfaces import CannotConnect, ConnectionLost, JsonRpcError, RequestNotSent
from app.mcp.client.transports import stdio
from app.mcp.client.transports.stdio import LineSplitter
from app.sandbox.process.local_process import LocalProcess
from tests.mcp.connections import HANG, RAW, Bench, call, no, program, raw
from tests.sandbox.spawned import sleeper, tagged
from tests.support.services import until

PYTHON = f"{sys.executable} -I -S {RAW} older"


async def test_calls_are_answered_whatever_else_is_written(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        assert await call(link, "junk") == {}
        assert await call(link, "by_pieces") == {"text": "pieces"}
        assert await call(link, "twice") == {"number": 1}
        assert await call(link, "wrong") == {"is_wrong": False}
        assert await call(link, "as_text") == {"is_text": True}
        assert await call(link, "half") == {"text": "half �", "number": 10**40}
        assert await call(link, "echo", text="zü\n\u2028") == {"text": "zü\n\u2028"}
        with pytest.raises(JsonRpcError, match="not an object"):
            await call(link, "no_object")

    assert "not JSON: Starting up...\n" in bench.journal.text
    assert "not JSON: [1, 2\n" in bench.journal.text
    assert bench.journal.text.count("not a JSON-RPC message") == 3


async def test_large_results_come_whole_beside_small_ones(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        large, *small = await asyncio.gather(
            call(link, "big", size=5_000_000), *(call(link, "echo", number=number) for number in range(50))
        )

    assert len(large["text"]) == 5_000_000
    assert small == [{"number": number} for number in range(50)]


async def test_large_arguments_go_in_while_the_server_writes(bench: Bench) -> None:
    """Both pipes are full at the same time, and nobody waits for the other."""
    text = "z" * 700_000
    async with bench.open(raw()) as link:
        answers = await asyncio.gather(*(call(link, "echo", text=text, number=number) for number in range(12)))

    assert [answer["number"] for answer in answers] == list(range(12))
    assert all(answer["text"] == text for answer in answers)


async def test_a_line_by_itself_goes_out_at_once_and_those_that_come_together_go_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "COALESCE_SECONDS", 0.2)
    at_once: list[int] = []
    waited: list[int] = []
    async with bench.open(raw()) as link:
        write, write_now = LocalProcess.write, LocalProcess.write_now

        def noted_now(child: LocalProcess, data: bytes) -> int:
            at_once.append(data.count(b"\n"))
            return write_now(child, data)

        async def noted(child: LocalProcess, data: bytes) -> None:
            waited.append(data.count(b"\n"))
            await write(child, data)

        monkeypatch.setattr(LocalProcess, "write_now", noted_now)
        monkeypatch.setattr(LocalProcess, "write", noted)
        await asyncio.sleep(0.3)
        answers = await asyncio.gather(*(call(link, "echo", number=number) for number in range(5)))

    assert [answer["number"] for answer in answers] == list(range(5))
    assert (at_once, waited) == ([1], [4])


async def test_what_breaks_while_it_is_read_loses_the_link_and_not_the_caller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(lines: LineSplitter, data: bytes) -> list[bytes]:
        raise RuntimeError("a bug of ours")

    async with bench.open(raw()) as link:
        monkeypatch.setattr(LineSplitter, "feed", broken)
        with pytest.raises(ConnectionLost, match="could not be read"):
            await call(link, "echo")
        assert link.lost.done()


async def test_a_line_that_is_too_long_is_left_out_and_the_next_one_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 3 * 1024 * 1024)
    async with bench.open(raw()) as link:
        assert await call(link, "huge_line", mib=9) == {}
        assert len((await call(link, "big", size=2_000_000))["text"]) == 2_000_000

    assert "a line of more than 3 MiB, which was dropped" in bench.journal.text


async def test_a_flood_of_progress_comes_through_in_order(bench: Bench) -> None:
    heard: list[float] = []
    async with bench.open(raw()) as link:
        tasks = len(asyncio.all_tasks())
        params = {"name": "flood", "arguments": {"steps": 10_000}}
        seen: list[int] = []

        def progressed(progress: float, total: float | None, message: str | None) -> None:
            heard.append(progress)
            seen.append(len(asyncio.all_tasks()) if progress % 1000 == 0 else 0)

        await link.request("tools/call", params, on_progress=progressed, timeout=HANG)

    assert heard == list(range(10_000))
    assert max(seen) <= tasks + 1


async def test_a_program_that_dies_ends_the_calls_at_once_and_says_why(bench: Bench) -> None:
    bench.secrets["TOKEN"] = "hunter2-is-secret"
    async with bench.open(raw(env={"TOKEN": {"secret": "TOKEN"}})) as link:
        waiting = asyncio.create_task(call(link, "slow"))
        await call(link, "echo")
        with pytest.raises(ConnectionLost) as caught:
            await call(link, "die")
        with pytest.raises(ConnectionLost):
            await waiting
        sentence = await link.lost
        with pytest.raises(RequestNotSent):
            await call(link, "echo")

    assert sentence == "The server's program exited with code 3; last stderr line: I fall apart: ***"
    assert str(caught.value) == sentence
    assert bench.journal.text == "I fall apart: ***\n"


async def test_a_kill_is_noticed_without_a_call(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        pid = (await call(link, "surroundings"))["pid"]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(HANG):
            sentence = await link.lost

    assert sentence == "The server's program exited with code 137."
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


async def test_a_program_that_closes_its_output_is_lost(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        await call(link, "close_output")
        async with asyncio.timeout(HANG):
            assert await link.lost == "The server's program closed its stdout."


async def test_a_wrapper_that_goes_takes_its_server_along(bench: Bench) -> None:
    """The shell does not become the server, and ends before it; the next link works."""
    server = program("bash", "-c", f"{PYTHON} <&0 & sleep 0.3; exit 4")
    async with bench.open(server) as link:
        pid = (await call(link, "surroundings"))["pid"]
        async with asyncio.timeout(HANG):
            assert "exited with code 4" in await link.lost
        await until(lambda: not os.path.exists(f"/proc/{pid}"))
    async with bench.open(server) as link:
        assert await call(link, "echo", again=True) == {"again": True}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("{server}; true", id="a shell around it"),
        pytest.param("{other} & setsid {other} & exec {server}", id="children beside it"),
        pytest.param("trap '' TERM; {server} <&0 & wait $!; {other}", id="one that hears no signal"),
    ],
)
async def test_nothing_of_the_tree_outlives_the_link(bench: Bench, script: str) -> None:
    tag = f"tree-{os.getpid()}-{abs(hash(script))}"
    server = program("bash", "-c", script.format(server=f"{PYTHON} {tag}", other=sleeper(tag)))
    async with bench.open(server) as link:
        assert await call(link, "echo") == {}
        assert tagged(tag)

    assert tagged(tag) == []


async def test_a_server_ends_by_itself_when_its_input_does(bench: Bench) -> None:
    script = f"{PYTHON}; echo it ended with $? >&2"
    async with bench.open(program("bash", "-c", script)) as link:
        await call(link, "echo")

    assert bench.journal.text == "it ended with 0\n"


async def test_who_cancels_cancels_at_the_server(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        task = asyncio.create_task(call(link, "slow"))
        await asyncio.sleep(0)
        await call(link, "echo")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        canceled = (await call(link, "show_canceled"))["canceled"]

    assert canceled == [3]  # after both hellos


async def test_what_is_canceled_before_it_went_out_never_does(bench: Bench) -> None:
    """The server sleeps and its pipe is full; who gives up leaves nothing behind."""
    async with bench.open(raw()) as link:
        asleep = asyncio.create_task(call(link, "sleep", seconds=0.5))
        await asyncio.sleep(0)
        filling = [asyncio.create_task(call(link, "echo", text="f" * 300_000)) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await link.request("tools/call", {"name": "nothing"}, timeout=0.05)
        await asyncio.gather(asleep, *filling)
        seen = (await call(link, "show_seen"))["seen"]
        canceled = (await call(link, "show_canceled"))["canceled"]

    assert seen.count("tools/call") == 10
    assert canceled == []


async def test_the_server_asks_and_tells(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        answer = await call(link, "ask", method="roots/list")
        bench.visitor.answer = no
        refusal = await call(link, "ask", method="sampling/createMessage")
        pong = await call(link, "ask", method="ping")
        await call(link, "take_back")
        await call(link, "tell", method="notifications/tools/list_changed")

    assert answer == {"answered": {"result": {"method": "roots/list"}}}
    assert refusal["answered"]["error"]["message"] == "not today"
    assert pong == {"answered": {"result": {}}}
    assert bench.visitor.news == [("notifications/tools/list_changed", {"from": "raw"}, None)]


async def test_it_gets_its_environment_and_nothing_of_ours(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_API_KEY", "ours")
    bench.secrets["TOKEN"] = "hunter2"
    env: dict[str, Any] = {"LEVEL": "3", "KEY": {"secret": "TOKEN"}}
    async with bench.open(raw(env=env, cwd="/usr")) as link:
        found = await call(link, "surroundings")

    assert found["cwd"] == "/usr"
    assert (found["env"]["LEVEL"], found["env"]["KEY"]) == ("3", "hunter2")
    assert "TOOLCRIB_API_KEY" not in found["env"]
    assert found["env"]["PATH"]


async def test_a_missing_secret_is_named(bench: Bench) -> None:
    with pytest.raises(CannotConnect, match="The secret TOKEN is not set; the server needs it as KEY") as caught:
        async with bench.open(raw(env={"KEY": {"secret": "TOKEN"}})):
            pass
    assert not caught.value.is_final


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("there-is-no-such-program", "There is no program there-is-no-such-program"),
        ("/etc/passwd", "could not be started: permission denied"),
    ],
)
async def test_a_program_that_cannot_be_started_is_told(bench: Bench, command: str, sentence: str) -> None:
    with pytest.raises(CannotConnect, match=sentence):
        async with bench.open(program(command)):
            pass


async def test_a_program_that_ends_before_hello_says_its_last_words(bench: Bench) -> None:
    with pytest.raises(CannotConnect, match="exited with code 7; last stderr line: no such module"):
        async with bench.open(program("bash", "-c", "echo no such module >&2; exit 7")):
            pass


def test_lines_are_cut_wherever_the_pieces_end() -> None:
    dropped: list[int] = []
    text = b"one\n\ntwo\r\n" + b"x" * 50 + b"\nthree\n" + b"y" * 9 + b"\nrest"
    for size in (1, 2, 3, 7, 10, 100):
        lines, found = LineSplitter(10, lambda: dropped.append(1)), list[bytes]()
        for at in range(0, len(text), size):
            found += lines.feed(text[at : at + size])
        assert found == [b"one", b"", b"two\r", b"three", b"y" * 9]
        assert lines.rest() == b"rest"
    assert len(dropped) == 6
