"""A watcher that is cut off again and again, also by dying services, ends up with the whole log, each event once."""

import asyncio
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.faults.data_checks import Acknowledged, broken_promises, last_seq, words
from tests.faults.load import Load
from tests.faults.raw_sockets import GONE, Body, data_of, id_of, streamed, wired
from tests.faults.service_processes import HANG, Service

CUTS = int(os.environ.get("FAULT_CUTS", "200"))


@dataclass(slots=True)
class Watcher:
    """A client that knows only the last event it has seen whole."""

    random: Random
    frames: list[bytes] = field(default_factory=list)

    @property
    def last(self) -> int:
        return id_of(self.frames[-1]) or 0 if self.frames else 0

    async def watch(self, port: int, *, bytes_left: int, seconds: float) -> None:
        """Look on from where it was, until so much has come or so much time has passed; then be cut off."""
        with suppress(TimeoutError, *GONE):
            async with streamed(port, "/v1/events", after=self.last) as stream, asyncio.timeout(seconds):
                while bytes_left > 0:
                    most = self.random.randint(1, bytes_left)
                    self.keep(await stream.frames(most))
                    bytes_left -= most

    async def catch_up(self, port: int, upto: int) -> None:
        async with streamed(port, "/v1/events", after=self.last) as stream, asyncio.timeout(HANG):
            while self.last < upto:
                self.keep(await stream.frames())

    def keep(self, frames: list[bytes]) -> None:
        self.frames += [frame for frame in frames if id_of(frame) is not None]


async def test_the_joined_pieces_of_a_stream_are_the_log_byte_for_byte(service: Service) -> None:
    seed = int(os.environ.get("FAULT_SEED", secrets.randbits(32)))
    watcher, load = Watcher(Random(seed)), Load(Random(seed))
    ends = {CUTS * n // 5: service.kill for n in (1, 2, 3)} | {CUTS * 4 // 5: service.terminate}
    loading = start_load(service, load)

    for number in range(1, CUTS + 1):
        end = ends.get(number)
        watching = asyncio.create_task(
            watcher.watch(
                service.port,
                bytes_left=watcher.random.randint(1, 30_000),
                seconds=watcher.random.choice((0.005, 0.02, 0.06)) if end is None else HANG,
            )
        )
        if end is not None:
            await asyncio.sleep(watcher.random.uniform(0.01, 0.1))
            await asyncio.to_thread(end)
            await loading
            service.start()
            loading = start_load(service, load)
        async with asyncio.timeout(HANG):
            await watching

    loading.cancel()
    await service.settle()
    await watcher.catch_up(service.port, last_seq(service.database))
    whole = Watcher(Random())
    await whole.catch_up(service.port, last_seq(service.database))
    assert [id_of(frame) for frame in watcher.frames] == list(range(1, whole.last + 1)), f"FAULT_SEED={seed}"
    assert watcher.frames == whole.frames, f"FAULT_SEED={seed}"
    assert [data_of(frame) for frame in whole.frames] == await stored_pages(service.port), f"FAULT_SEED={seed}"
    assert broken_promises(service.database, service.effects, load.told) == [], f"FAULT_SEED={seed}"
    assert service.starts == 5
    assert whole.last > 5 * CUTS


async def test_output_and_progress_of_a_running_call_survive_cuts(service: Service) -> None:
    chunks = 60
    said = words(chunks)
    random, stored, output = Random(5), list[bytes](), bytearray()
    async with wired(service.port) as wire:
        call = (await wire.call(slow_call("a", chunks, 0.02), wait=0)).body
        assert call["status"] == "running"

        while len(output) < len(said) // 2:
            await watch_call(service, call["id"], stored, output, random.uniform(0.02, 0.2))
        await watch_call(service, call["id"], stored, output, HANG)

        read = await wire.get(f"/v1/calls/{call['id']}/output")
    assert (bytes(output), read.content) == (said, said)
    assert read.headers["toolcrib-output-total"] == str(len(said))
    types = [data_of(frame)["type"] for frame in stored]
    progress = [data_of(frame)["data"] for frame in stored if b"event: call.progress" in frame]
    done = [step["metadata"]["done"] for step in progress]
    assert (types[:2], types[-1]) == (["call.pending", "call.running"], "call.completed")
    assert set(types[2:-1]) == {"call.progress"}
    assert done == sorted(set(done))
    assert progress[-1] == {"title": f"{chunks} of {chunks}", "metadata": {"done": chunks}}


async def test_live_output_on_the_common_stream_has_no_number_and_the_right_offsets(service: Service) -> None:
    pieces, progress = list[Body](), list[Body]()
    path = "/v1/events?types=call.output,call.progress,call.completed"
    async with streamed(service.port, path) as stream, wired(service.port) as wire, asyncio.timeout(HANG):
        call = (await wire.call(slow_call("b", 30, 0.02), wait=0)).body
        async for frame in stream.follow():
            if b"event: call.output" in frame:
                assert id_of(frame) is None
                pieces.append(data_of(frame)["data"])
            elif b"event: call.progress" in frame:
                assert id_of(frame) is not None
                progress.append(data_of(frame)["data"])
            elif b"event: call.completed" in frame:
                break
        read = await wire.get(f"/v1/calls/{call['id']}/output")
    joined = b""
    for piece in pieces:
        assert (piece["offset"], piece["stream"]) == (len(joined), "stdout")
        joined += piece["text"].encode()
    assert joined == read.content
    assert len(pieces) > 1
    assert progress[-1]["metadata"] == {"done": 30}


async def test_a_killed_call_keeps_the_output_it_had(service: Service) -> None:
    chunks = 500
    said = words(chunks)
    async with wired(service.port) as wire:
        call = (await wire.call(slow_call("c", chunks, 0.02), wait=1)).body
    service.kill()
    service.start()

    async with wired(service.port) as wire:
        ended = (await wire.get(f"/v1/calls/{call['id']}")).body
        kept = (await wire.get(f"/v1/calls/{call['id']}/output")).content

    assert (call["status"], ended["status"], ended["error"]["code"]) == ("running", "error", "Interrupted")
    assert kept
    assert said.startswith(kept)
    assert ended["result"]["output"].encode() == kept
    assert broken_promises(service.database, [], Acknowledged()) == []


def start_load(service: Service, load: Load) -> "asyncio.Task[None]":
    return asyncio.create_task(load.run(service.port, 6, pause=0.02))


def slow_call(token: str, chunks: int, seconds: float) -> Body:
    return {"tool": "slow", "arguments": {"token": token, "chunks": chunks, "seconds": seconds}}


async def watch_call(service: Service, id: str, stored: list[bytes], output: bytearray, seconds: float) -> None:
    """Follow a call's own stream from where it was, for a while or to its end."""
    path = f"/v1/calls/{id}/events?output_after={len(output)}"
    after = id_of(stored[-1]) if stored else None
    with suppress(TimeoutError):
        async with streamed(service.port, path, after) as stream, asyncio.timeout(seconds):
            async for frame in stream.follow():
                if id_of(frame) is not None:
                    stored.append(frame)
                elif b"event: call.output" in frame:
                    piece = data_of(frame)["data"]
                    assert piece["offset"] == len(output)
                    output += piece["text"].encode()


async def stored_pages(port: int) -> list[Body]:
    """The log as JSON, page by page."""
    events, cursor = list[Body](), "0"
    async with wired(port) as wire:
        while cursor:
            page = (await wire.get(f"/v1/events?after={cursor}&limit=500", Accept="application/json")).body
            events += page["data"]
            cursor = page["next_cursor"]
    return events
