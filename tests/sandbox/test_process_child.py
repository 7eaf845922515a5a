"""What goes in and out of a process: pipes, a terminal, the channel, and a reader who takes its time."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator

import pytest
import uvloop

from app.core.sandbox import ExitStatus, OutputChunk, WindowSize
from app.sandbox.process import local_process as process_child
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.spawner import Spawner
from tests.sandbox.spawned import ENV, bash, order, said, said_until, started
from tests.support.services import HANG, until

pytestmark = pytest.mark.timeout(60)
MUCH = 3_000_000
WINDOW = WindowSize(33, 101)


@pytest.fixture
async def crib() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


async def test_what_it_writes_comes_by_stream_and_is_over_at_its_end(crib: Spawner) -> None:
    async with started(crib, bash("echo out; echo err >&2; exit 3")) as child:
        assert child.ended is None or child.ended == ExitStatus(3)
        pieces = [piece async for piece in all_of(child)]
        assert await child.wait() == child.ended == ExitStatus(3)
        assert await child.read() is None

    assert sorted(pieces) == [("stderr", b"err\n"), ("stdout", b"out\n")]


async def all_of(child: LocalProcess) -> AsyncIterator[tuple[str, bytes]]:
    while piece := await child.read():
        yield piece.stream, piece.data


async def test_who_wants_one_stream_only_does_not_wait_for_the_other(crib: Spawner) -> None:
    async with started(crib, bash("echo out; exec 1>&-; sleep 1000")) as child, asyncio.timeout(HANG):
        first, then = await child.read(until="stdout"), await child.read(until="stdout")

        assert first == ("stdout", b"out\n")
        assert then is None
        assert child.ended is None


async def test_without_input_it_reads_nothing(crib: Spawner) -> None:
    async with started(crib, bash("cat; echo over")) as child:
        assert await said(child) == b"over\n"
        with pytest.raises(BrokenPipeError):
            await child.write(b"x")
        child.close_input()


async def test_three_megabytes_go_through_input_and_output(crib: Spawner) -> None:
    data = os.urandom(MUCH)
    async with started(crib, order("cat"), has_stdin=True) as child, asyncio.TaskGroup() as group:
        reading = group.create_task(said(child))
        await child.write(data)
        child.close_input()

    assert reading.result() == data


async def test_who_listens_gets_what_came_before_and_all_that_comes_after(crib: Spawner) -> None:
    heard: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def take(piece: OutputChunk) -> None:
        heard[piece.stream] += piece.data

    script = f"echo first; read line; head -c {MUCH} /dev/zero; echo err >&2"
    async with started(crib, bash(script), has_stdin=True) as child, asyncio.timeout(HANG):
        await until(lambda: bool(child._chunks))
        child.listen(take)
        assert heard == {"stdout": b"first\n", "stderr": b""}
        await child.write(b"go on\n")
        assert await child.read() is None

    assert heard == {"stdout": b"first\n" + bytes(MUCH), "stderr": b"err\n"}


async def test_what_there_is_no_room_for_is_not_written_now(crib: Spawner) -> None:
    data = os.urandom(MUCH)
    async with started(crib, bash("read line; exec cat"), has_stdin=True) as child, asyncio.timeout(HANG):
        written = child.write_now(b"go on\n" + data) - len(b"go on\n")
        assert 0 < written < MUCH
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(said(child))
            writing = group.create_task(child.write(data[written:]))
            await asyncio.sleep(0)
            if not writing.done():
                assert child.write_now(b"between the two halves") == 0
            await writing
            child.close_input()

        with pytest.raises(BrokenPipeError):
            child.write_now(b"more")

    assert reading.result() == data


async def test_three_megabytes_come_from_the_error_stream(crib: Spawner) -> None:
    async with started(crib, bash(f"head -c {MUCH} /dev/zero >&2")) as child:
        assert await said(child, "stderr") == bytes(MUCH)


async def test_three_megabytes_go_through_a_terminal(crib: Spawner) -> None:
    data = os.urandom(MUCH // 3).hex().encode()
    script = f"stty raw -echo; echo go; head -c {len(data)}"
    async with started(crib, bash(script, has_terminal=True), tty=WINDOW) as child:
        text = await said_until(child, b"go\n")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(said(child))
            await child.write(data)

    assert (text + reading.result()).partition(b"go\n")[2] == data


async def test_three_megabytes_go_through_the_channel_as_one_line(crib: Spawner) -> None:
    line = os.urandom(MUCH // 2).hex().encode()
    async with started(crib, bash("cat <&3 >&4 3<&- & wait"), has_channel=True) as child:
        async with asyncio.TaskGroup() as group:
            group.create_task(child.send(line))
            assert await child.receive() == line
        await child.send(b"second")
        assert await child.receive() == b"second"


async def test_the_channel_ends_with_the_process_and_a_line_without_an_end_is_none(crib: Spawner) -> None:
    async with started(crib, bash("echo one >&4; echo two >&4; printf three >&4"), has_channel=True) as child:
        assert [await child.receive() for _ in range(4)] == [b"one", b"two", None, None]
        await child.wait()
        with pytest.raises(BrokenPipeError):
            await child.send(b"x" * MUCH)


async def test_a_line_without_end_does_not_fill_the_memory(
    crib: Spawner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_child, "MAX_LINE_BYTES", 1_000_000)
    async with started(crib, bash("head -c 9000000 /dev/zero >&4; sleep 60"), has_channel=True) as child:
        assert await child.receive() is None

    assert "no more is read" in caplog.text


async def test_a_receive_that_is_canceled_loses_nothing(crib: Spawner) -> None:
    what = bash("read line; printf wh >&4; read line; echo ole >&4")
    async with started(crib, what, has_stdin=True, has_channel=True) as child:
        for _ in range(2):
            receiving = asyncio.create_task(child.receive())
            await child.write(b"\n")
            await asyncio.sleep(0.05)
            is_done = receiving.done()
            receiving.cancel()
        assert is_done
        assert receiving.result() == b"whole"


async def test_a_read_that_is_canceled_loses_nothing(crib: Spawner) -> None:
    async with started(crib, bash("cat"), has_stdin=True) as child:
        for _ in range(3):
            reading = asyncio.create_task(child.read())
            await asyncio.sleep(0)
            reading.cancel()
        await child.write(b"all of it")
        child.close_input()
        assert await said(child) == b"all of it"


async def test_a_write_that_nobody_takes_ends_with_the_process(crib: Spawner) -> None:
    async with started(crib, order("sleep", "60"), has_stdin=True) as child:
        writing = asyncio.create_task(child.write(b"x" * MUCH))
        await asyncio.sleep(0.05)
        assert not writing.done()

        child.signal(signal.SIGKILL)
        with pytest.raises(BrokenPipeError):
            await writing
        assert await child.wait() == ExitStatus(128 + signal.SIGKILL)


async def test_what_is_not_read_makes_it_stand_still_and_is_not_lost(crib: Spawner) -> None:
    script = "for i in $(seq 64); do head -c 1048576 /dev/zero; echo $i >&4; done"
    async with started(crib, bash(script), has_channel=True) as child:
        done = await standstill(child)
        assert done <= 2  # of 64 megabytes: what the pipes hold, and what waits here
        assert child._unread_bytes <= process_child.MAX_UNREAD_BYTES
        assert child.ended is None

        counting = asyncio.create_task(lines(child))
        assert len(await said(child)) == 64 * 1024 * 1024
        assert done + await counting == 64
        assert await child.wait() == ExitStatus(0)


async def standstill(child: LocalProcess) -> int:
    """How many lines came through the channel until no more came."""
    done = 0
    try:
        while await asyncio.wait_for(child.receive(), 0.5) is not None:
            done += 1
    except TimeoutError:
        pass
    return done


async def lines(child: LocalProcess) -> int:
    count = 0
    while await child.receive() is not None:
        count += 1
    return count


async def test_a_slow_reader_gets_all_that_was_written_before_the_end(
    crib: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_child, "LINGER_SECONDS", 0.05)
    size = process_child.MAX_UNREAD_BYTES - process_child.READ_BYTES + 64_000  # a little more than is taken in at once
    async with started(crib, bash(f"head -c {size} /dev/zero")) as child:
        await child.wait()
        await asyncio.sleep(0.3)

        assert len(await said(child)) == size


async def test_one_that_holds_the_output_open_is_not_waited_for(crib: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_child, "LINGER_SECONDS", 0.1)
    async with started(crib, bash("echo out")) as child:
        holding = os.open(f"/proc/self/fd/{child._outputs['stdout']}", os.O_WRONLY)
        try:
            async with asyncio.timeout(HANG):
                assert await said(child) == b"out\n"
        finally:
            os.close(holding)


async def test_the_first_process_is_not_held_by_a_child_that_has_its_output(crib: Spawner) -> None:
    async with started(crib, bash("sleep 60 & echo done")) as child, asyncio.timeout(HANG):
        assert await said(child) == b"done\n"
        assert await child.wait() == ExitStatus(0)


async def test_a_signal_reaches_the_group_of_the_first_process(crib: Spawner) -> None:
    script = "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.01; done"
    async with started(crib, bash(script)) as child:
        await said_until(child, b"ready\n")
        child.signal(signal.SIGUSR1)
        assert await said(child) == b"got\n"
        assert await child.wait() == ExitStatus(9)
        child.signal(signal.SIGUSR1)  # to nobody


async def test_the_end_is_kind_first(crib: Spawner) -> None:
    script = "trap 'echo bye; exit 5' TERM; (trap 'echo child >&2; exit' TERM; echo ready; sleep 60 & wait) & wait"
    async with started(crib, bash(script)) as child:
        await said_until(child, b"ready\n")
        assert await child.end(HANG) == ExitStatus(5)
        texts = {piece async for piece in all_of(child)}

    assert texts == {("stdout", b"bye\n"), ("stderr", b"child\n")}


async def test_the_end_comes_also_to_those_who_refuse_or_sleep(crib: Spawner) -> None:
    async with started(crib, bash("trap '' TERM; echo ready; while :; do sleep 60; done")) as child:
        await said_until(child, b"ready\n")
        assert await child.end(0.1) == ExitStatus(128 + signal.SIGKILL)
    async with started(crib, bash("echo ready; kill -STOP $$")) as child:
        await said_until(child, b"ready\n")
        assert await child.end(HANG) == ExitStatus(128 + signal.SIGTERM)


async def test_the_end_is_reached_whoever_cancels_it(crib: Spawner) -> None:
    async with started(crib, bash("trap '' TERM; echo ready; while :; do sleep 60; done")) as child:
        await said_until(child, b"ready\n")
        ending = asyncio.create_task(child.end(0.2))
        for _ in range(3):
            await asyncio.sleep(0.02)
            ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

        assert child.ended == ExitStatus(128 + signal.SIGKILL)


class Screen:
    """A shell on a terminal, and what it has written so far that nobody asked for yet."""

    def __init__(self, child: LocalProcess) -> None:
        self.child = child
        self._text = b""

    async def shows(self, *words: bytes) -> None:
        """Wait until these have come, one after the other."""
        for word in words:
            while word not in self._text:
                piece = await self.child.read()
                assert piece is not None, f"it ended without {word!r}: {self._text!r}"
                self._text += piece.data
            self._text = self._text.partition(word)[2]

    async def runs(self, command: bytes) -> None:
        """Have the shell start this, and wait until it is there to hear signals."""
        await self.child.write(b"sh -c 'echo up; exec %s'\n" % command)
        await self.shows(b"up\r\n")


SHELL = order("bash", "--norc", "-i", env=ENV | {"TERM": "xterm", "PS1": "ready> "}, has_terminal=True)


async def test_a_terminal_has_its_size_its_name_and_job_control(crib: Spawner) -> None:
    async with started(crib, SHELL, tty=WINDOW) as child:
        screen = Screen(child)
        await child.write(b"stty size; tty\n")
        await screen.shows(b"33 101\r\n", b"/dev/pts/", b"ready> ")
        child.resize(WindowSize(44, 120))
        await child.write(b"stty size\n")
        await screen.shows(b"44 120\r\n", b"ready> ")

        await screen.runs(b"sleep 600")
        await child.write(b"\x03")
        await screen.shows(b"^C", b"ready> ")
        await child.write(b"echo code $?\n")
        await screen.shows(b"code 130", b"ready> ")

        await screen.runs(b"sleep 600")
        child.signal(signal.SIGTERM)  # to the one in the foreground, not to the shell
        await screen.shows(b"Terminated", b"ready> ")
        await child.write(b"sleep 600 &\n")
        await child.write(b"jobs; exit 6\n")
        await screen.shows(b"Running")
        assert await child.wait() == ExitStatus(6)


async def test_ctrl_z_stops_a_job_and_it_can_be_brought_back(crib: Spawner) -> None:
    async with started(crib, SHELL, tty=WINDOW) as child:
        screen = Screen(child)
        await screen.shows(b"ready> ")
        await screen.runs(b"cat")
        await child.write(b"\x1a")
        await screen.shows(b"Stopped", b"ready> ")
        await child.write(b"fg\n")
        await screen.shows(b"exec cat'")
        await child.write(b"hello\n")
        await screen.shows(b"hello", b"hello")
        child.close_input()
        await screen.shows(b"ready> ")
        child.close_input()
        assert await child.wait() == ExitStatus(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make it somebody else's")
async def test_a_terminal_belongs_to_who_uses_it(crib: Spawner) -> None:
    script = "stat -c %u $(tty); echo again > $(tty)"
    async with started(crib, bash(script, has_terminal=True, identity=(65_534, 65_534)), tty=WINDOW) as child:
        assert await said(child) == b"65534\r\nagain\r\n"


async def test_whoever_is_closed_twice_or_never_begun_leaves_no_file_open(crib: Spawner) -> None:
    async def one(**how: object) -> None:
        async with started(crib, bash("sleep 60", has_terminal=bool(how.get("tty"))), **how) as child:  # type: ignore[arg-type]
            await child.close()

    await one()
    before = len(os.listdir("/proc/self/fd"))
    await one(has_stdin=True, has_channel=True)
    await one(tty=WINDOW)
    with pytest.raises(OSError, match="No such file"):
        await crib.start(order("nothing", has_terminal=True), tty=WINDOW, has_channel=True)

    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_terminal_that_was_not_asked_for_cannot_be_had(crib: Spawner) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says it
        await crib.start(order("true", has_terminal=True))

    assert caught.value.errno == errno.ENOTTY


def test_it_is_the_same_on_the_loop_of_the_service() -> None:
    async def main() -> None:
        crib = Spawner()
        data = os.urandom(MUCH)
        async with started(crib, order("cat"), has_stdin=True) as child, asyncio.TaskGroup() as group:
            reading = group.create_task(said(child))
            await child.write(data)
            child.close_input()
        assert reading.result() == data
        before = len(os.listdir("/proc/self/fd"))
        await test_three_megabytes_go_through_a_terminal(crib)
        await test_three_megabytes_go_through_the_channel_as_one_line(crib)
        await test_what_is_not_read_makes_it_stand_still_and_is_not_lost(crib)
        await test_a_write_that_nobody_takes_ends_with_the_process(crib)
        await test_the_end_is_reached_whoever_cancels_it(crib)
        assert len(os.listdir("/proc/self/fd")) <= before
        crib.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
