"""An orderly end, and the lock that keeps a second service off a data directory."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.data_checks import Acknowledged, broken_promises
from tests.faults.raw_sockets import Answer, Body, streamed, wired
from tests.faults.service_processes import HANG, Service, Started, Zygote, command_line, runner

Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, and sees to it that none is left."""
    started = list[Started]()

    def start(command: list[str], **environment: str) -> Started:
        started.append(Started(command, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


async def test_sigterm_lets_calls_end_within_the_grace_and_interrupts_the_others(
    start: Start, zygote: Zygote, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    service = start(runner(data_dir), TOOLCRIB_GRACE="6")
    watching = asyncio.create_task(count_frames(service.port))
    waiting: dict[str, asyncio.Task[Answer]] = {}
    for name, body, state_by_then in [
        ("endless", slow_call("endless", 60), {"running": 1}),
        ("holder", {"tool": "turn", "arguments": {"token": "holder", "seconds": 60}}, {"running": 2}),
        ("queued", {"tool": "turn", "arguments": {"token": "queued"}}, {"running": 2, "pending": 1}),
        ("quick", slow_call("quick", 3), {"running": 3, "pending": 1}),
    ]:
        waiting[name] = asyncio.create_task(post(service.port, body, wait=30))
        await until(data_dir, state_by_then)

    async with asyncio.timeout(HANG):
        code, said = await asyncio.to_thread(service.end)
        answers = {name: await task for name, task in waiting.items()}
        frames = await watching

    assert code == 0, said
    assert "Traceback" not in said
    assert {name: (answer.status, state(answer.body)) for name, answer in answers.items()} == {
        "quick": (200, ("completed", None)),
        "endless": (200, ("error", "Interrupted")),
        "holder": (200, ("error", "Interrupted")),
        "queued": (202, ("pending", None)),
    }
    assert statuses(data_dir) == {"completed": 1, "error": 2, "pending": 1}
    assert frames > 4

    told = Acknowledged()
    for name, answer in answers.items():
        told.note(answer.body, name)
    again = Service(zygote, data_dir).start()
    await again.settle()
    assert again.terminate() == 0
    assert again.effects == ["holder", "queued"]
    assert statuses(data_dir) == {"completed": 2, "error": 2}
    assert broken_promises(again.database, again.effects, told) == []


async def test_a_second_signal_ends_the_grace(start: Start, tmp_path: Path) -> None:
    service = start(runner(tmp_path / "data"), TOOLCRIB_GRACE="600")
    asked = asyncio.create_task(post(service.port, slow_call("endless", 600), wait=300))
    await until(tmp_path / "data", {"running": 1})

    service.process.terminate()
    await gone(service.port)
    async with asyncio.timeout(HANG):
        code, said = await asyncio.to_thread(service.end)
        answer = await asked

    assert code == 0, said
    assert state(answer.body) == ("error", "Interrupted")
    assert statuses(tmp_path / "data") == {"error": 1}


async def test_a_stopping_service_takes_no_more_calls_and_says_so(start: Start, tmp_path: Path) -> None:
    service = start(runner(tmp_path / "data"), TOOLCRIB_GRACE="1.5")
    async with wired(service.port) as wire:
        first = asyncio.create_task(post(service.port, slow_call("a", 1), wait=30))
        await until(tmp_path / "data", {"running": 1})
        service.process.terminate()
        await gone(service.port)
        late = await wire.call({"tool": "echo", "arguments": {"token": "b"}})
        ready = await wire.get("/readyz")

    assert (late.status, late.body["code"], late.headers["retry-after"]) == (503, "Stopping", "5")
    assert (ready.status, ready.body["status"]) == (503, "stopping")
    assert (await first).body["status"] == "completed"
    assert (await asyncio.to_thread(service.wait))[0] == 0
    assert statuses(tmp_path / "data") == {"completed": 1}


@pytest.mark.parametrize("command", [runner, command_line], ids=["toys", "command line"])
async def test_an_idle_service_ends_with_exit_code_0_though_somebody_watches(
    command: Callable[[Path], list[str]], start: Start, tmp_path: Path
) -> None:
    service = start(command(tmp_path / "data"))
    watching = asyncio.create_task(count_frames(service.port))
    async with wired(service.port) as wire:
        answer = await wire.call({"tool": "list_dir", "arguments": {"dir_path": "."}})

        async with asyncio.timeout(HANG):
            code, said = await asyncio.to_thread(service.end)
            await watching

    assert answer.body["status"] == "completed"
    assert code == 0, said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "command",
    [runner, lambda data_dir: runner(data_dir, "--bare"), command_line],
    ids=["toys", "under uvicorn", "command line"],
)
async def test_a_second_service_on_a_data_directory_says_who_has_it_and_ends(
    command: Callable[[Path], list[str]], start: Start, service: Service
) -> None:
    second = start(command(service.data_dir))

    code, said = second.wait()

    assert second.port == 0
    assert code > 0
    assert "Another Toolcrib" in said
    assert str(service.data_dir) in said
    assert (await post(service.port, {"tool": "echo", "arguments": {"token": "a"}})).body["status"] == "completed"


def test_the_command_line_says_it_in_one_sentence(start: Start, service: Service) -> None:
    code, said = start(command_line(service.data_dir)).wait()

    assert code == 1
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1, said


async def test_a_killed_service_leaves_its_data_directory_free(start: Start, tmp_path: Path) -> None:
    first = start(command_line(tmp_path / "data"))
    first.process.kill()
    first.wait()

    second = start(command_line(tmp_path / "data"))

    assert second.port
    assert (await post(second.port, {"tool": "list_dir", "arguments": {"dir_path": "."}})).status == 200
    assert second.end()[0] == 0


def slow_call(token: str, seconds: float) -> Body:
    return {"tool": "slow", "arguments": {"token": token, "chunks": 10, "seconds": seconds / 10}}


async def post(port: int, body: Body, wait: float | None = None) -> Answer:
    async with wired(port) as wire:
        return await wire.call(body, wait)


async def count_frames(port: int) -> int:
    """Watch everything until the service ends the stream in good order."""
    count = 0
    async with streamed(port, "/v1/events", after=0) as stream:
        async for _ in stream.follow():
            count += 1
    return count


async def until(data_dir: Path, wanted: dict[str, int]) -> None:
    """Wait until the records, which are all there is to see from outside, say this."""
    async with asyncio.timeout(HANG):
        while statuses(data_dir) != wanted:  # noqa: ASYNC110 - the service is another process
            await asyncio.sleep(0.01)


async def gone(port: int) -> None:
    """Wait until no new connection is accepted."""
    async with asyncio.timeout(HANG):
        while True:
            try:
                async with wired(port):
                    await asyncio.sleep(0.01)
            except OSError:
                return


def statuses(data_dir: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{data_dir / 'toolcrib.db'}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT status, count(*) FROM calls GROUP BY status").fetchall())


def state(call: Body) -> tuple[str, str | None]:
    return call["status"], call["error"] and call["error"]["code"]
