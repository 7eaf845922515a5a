"""How processes begin and end: what they find, what they answer, and what is said when they cannot begin."""

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.sandbox import ExitStatus
from app.sandbox.isolation import apply
from app.sandbox.process import process_tree, supervisor
from app.sandbox.process import spawner as process_spawner
from app.sandbox.process.local_process import LocalProcess
from app.sandbox.process.preforked import unpack
from app.sandbox.process.spawner import IsolationSpec, Mount, NotStarted, Spawner, SpawnRequest, pack
from tests.sandbox.spawned import ENV, WALLS, bash, order, resident_of, said, spawner_of, started, tagged, zombies_below
from tests.support.scale import rounds
from tests.support.services import until

pytestmark = pytest.mark.timeout(60)
NOBODY = 65_534
OF_THE_LIBRARY = 0b11 << 31
"""Two signals that no program can set; who was started by `posix_spawn` ignores them, until the library needs them."""


@pytest.fixture
async def crib() -> AsyncIterator[Spawner]:
    spawner = Spawner()
    yield spawner
    spawner.close()


async def ended(crib: Spawner, what: SpawnRequest) -> ExitStatus:
    async with started(crib, what) as child:
        return await child.wait()


async def test_a_process_answers_with_its_code_or_the_signal_that_ended_it(crib: Spawner) -> None:
    assert await ended(crib, order("true")) == ExitStatus(0)
    assert await ended(crib, bash("exit 7")) == ExitStatus(7)
    assert await ended(crib, bash("kill -KILL $$")) == ExitStatus(128 + signal.SIGKILL)
    assert await ended(crib, bash("kill -SEGV $$")) == ExitStatus(128 + signal.SIGSEGV)


async def test_it_finds_its_environment_its_folder_and_nothing_else(crib: Spawner, tmp_path: Path) -> None:
    script = "env; pwd; echo fds: $(ls /proc/self/fd); ulimit -c; cat /proc/self/status; ps -o sid= -p $$"
    async with started(crib, bash(script, cwd=str(tmp_path), env={**ENV, "MINE": "a\nb"})) as child:
        text = (await said(child)).decode()

    assert "MINE=a\nb\n" in text
    assert f"{process_tree.MARK}=" in text
    assert f"\n{tmp_path}\n" in text
    assert "\nfds: 0 1 2 3\n0\n" in text  # the last is that of `ls` itself, and no core is ever written
    ignored = int(text.partition("SigIgn:")[2].split()[0], 16)
    blocked = int(text.partition("SigBlk:")[2].split()[0], 16)
    assert (ignored & ~OF_THE_LIBRARY, blocked) == (0, 0)
    assert int(text.split()[-1]) == child.pid


async def test_nothing_that_the_service_has_open_comes_along(crib: Spawner, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        await asyncio.to_thread(crib.open)
        async with started(crib, bash("ls -l /proc/*/fd 2>/dev/null")) as child:
            text = await said(child)
        resident = os.listdir(f"/proc/{resident_of(crib)}/fd")

    mine = [line for line in text.decode().splitlines() if str(tmp_path / "secret") in line]
    assert len(mine) <= 1  # as root it sees that of the service itself
    assert len(resident) <= 7


async def test_the_limits_of_the_kernel_are_set_and_never_widened(crib: Spawner) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = {"FSIZE": 1024 * 1024, "NOFILE": most + 1000 if most > 0 else 512, "CPU": 100}

    async with started(crib, bash("ulimit -f; ulimit -t; ulimit -n", limits=limits)) as child:
        size, cpu, files = (await said(child)).split()

    assert (size, cpu) == (b"1024", b"100")
    assert int(files) <= most


async def test_a_program_that_is_not_there_is_an_error_that_says_so(crib: Spawner, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    await ended(crib, order("true"))
    before = len(os.listdir("/proc/self/fd"))

    for program, number in (("no-such-program", errno.ENOENT), ("/no/such", errno.ENOENT), (tmp_path / "plain", 13)):
        with pytest.raises(NotStarted) as caught:
            await crib.start(order(str(program)))
        assert (caught.value.errno, caught.value.stage, caught.value.filename) == (number, "program", str(program))

    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_folder_that_is_not_there_is_another(crib: Spawner, tmp_path: Path) -> None:
    with pytest.raises(NotStarted) as caught:
        await crib.start(order("true", cwd=str(tmp_path / "none")))

    assert (caught.value.errno, caught.value.stage) == (errno.ENOENT, "cwd")


async def test_more_arguments_than_the_kernel_takes_are_said_to_be_too_long(crib: Spawner) -> None:
    with pytest.raises(NotStarted) as caught:
        await crib.start(order("true", *["x" * 100_000] * 80))
    assert (caught.value.errno, caught.value.stage) == (errno.E2BIG, "program")

    with pytest.raises(NotStarted, match="embedded null byte") as strange:
        await crib.start(order("true", "a\0b"))
    assert strange.value.stage == "program"


async def test_a_megabyte_of_arguments_and_variables_arrives_whole(crib: Spawner) -> None:
    words, env = ["x" * 100_000] * 8, {**ENV, "LONG": "y" * 100_000}
    script = 'cat /proc/$$/cmdline /proc/$$/environ | wc -c; echo "${#LONG}"'
    async with started(crib, order("bash", "-c", script, *words, env=env)) as child:
        size, long = (await said(child)).split()

    assert int(size) > 900_000
    assert long == b"100000"


async def test_a_folder_and_files_that_are_held_open_come_along_under_their_numbers(
    crib: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_text("in the folder")
    folder = os.open(tmp_path / "sub", os.O_RDONLY)
    many = []
    for number in range(260):  # more than go with one packet
        (tmp_path / f"file{number}").write_text(f"{number}\n")
        many.append(os.open(tmp_path / f"file{number}", os.O_RDONLY))
    try:
        script = "cat file; for n in " + " ".join(map(str, many)) + "; do cat <&$n; done; ls /proc/$$/fd | wc -l"
        async with started(crib, bash(script, cwd_fd=folder, pass_fds=tuple(many))) as child:
            text = (await said(child)).decode()
    finally:
        for fd in (folder, *many):
            os.close(fd)

    lines = [str(number) for number in range(260)]
    assert text.split("folder")[1].split()[:-1] == lines
    assert int(text.split()[-1]) <= 3 + 260 + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_it_becomes_who_the_order_says(crib: Spawner) -> None:
    async with started(crib, order("id", identity=(NOBODY, NOBODY))) as child:
        text = await said(child)

    assert text.startswith(b"uid=65534")
    assert b"groups=65534" in text
    assert b"root" not in text


async def test_what_the_walls_hand_out_comes_with_the_process(
    crib: Spawner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The spawner is made to run another enclosure, which hands out a listening socket before it goes on."""
    (tmp_path / "handing.py").write_text("""
import os, socket
from app.sandbox.isolation import apply
def apply_and_send_listener(request, send_listener):
    listener = socket.create_server(("127.0.0.1", 0))
    send_listener(listener.fileno())
    return list(request.argv)
apply.apply = apply_and_send_listener
""")
    launch = process_spawner.LAUNCH.replace("main()", f"sys.path.append({str(tmp_path)!r}); import handing; main()")
    monkeypatch.setattr(process_spawner, "LAUNCH", launch)

    spawned = await crib.start(order("true"))
    await LocalProcess(spawned, WALLS).close()

    assert spawned.listener is not None
    with socket.socket(fileno=spawned.listener) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        socket.create_connection(listener.getsockname()).close()


async def test_walls_that_cannot_be_built_are_told_from_programs_that_cannot_run(crib: Spawner) -> None:
    with pytest.raises(NotStarted) as caught:
        await crib.start(order("true", isolation=IsolationSpec(backend="landlock", network="allowlist", proxy=None)))

    assert caught.value.stage == "isolation"


async def test_a_keeper_that_is_killed_while_it_is_free_is_no_matter(crib: Spawner) -> None:
    await ended(crib, order("true"))
    resident = resident_of(crib)
    await until(lambda: len(process_tree.children(resident)) == 2)
    for pid in process_tree.children(resident):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: process_tree.children(resident) == [])

    assert await ended(crib, bash("exit 3")) == ExitStatus(3)


async def test_a_spawner_that_was_killed_is_replaced_and_what_runs_goes_on(crib: Spawner) -> None:
    async with started(crib, order("cat"), has_stdin=True) as old:
        first = spawner_of(old)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not crib._process or not crib._process.is_alive())

        assert await ended(crib, bash("exit 3")) == ExitStatus(3)
        assert resident_of(crib) != first
        await old.write(b"still here")
        old.close_input()
        assert await said(old) == b"still here"
        assert await old.wait() == ExitStatus(0)


async def test_it_can_be_used_from_several_threads_with_loops_of_their_own(crib: Spawner) -> None:
    async def some(number: int) -> list[ExitStatus]:
        return [await ended(crib, bash(f"exit {number}")) for _ in range(5)]

    found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, some(number)) for number in range(4)), some(4))

    assert found == [[ExitStatus(number)] * 5 for number in range(5)]


async def test_a_closed_one_starts_nothing(crib: Spawner) -> None:
    await ended(crib, order("true"))
    resident = resident_of(crib)
    crib.close()

    assert resident not in process_tree.children(os.getpid())
    with pytest.raises(OSError, match="no more processes"):
        await crib.start(order("true"))


async def flat(crib: Spawner, rounds: int) -> None:
    """Many starts of every kind, after which everything is as it was."""
    kinds = [order("true"), bash("exit 3"), order("no-such-program"), bash("(setsid sleep 60 &)"), order("sleep", "60")]

    async def one(what: SpawnRequest, number: int) -> None:
        try:
            async with started(crib, what, has_stdin=number % 3 == 0, has_channel=number % 4 == 0) as child:
                await (child.end(0) if what.argv[0] == "sleep" else child.wait())
        except NotStarted:
            assert what.argv[0] == "no-such-program"

    async def many(count: int) -> None:
        for start in range(0, count, 20):
            async with asyncio.TaskGroup() as group:
                for number in range(start, min(start + 20, count)):
                    group.create_task(one(kinds[number % len(kinds)], number))

    await many(20)
    gc.collect()  # what earlier tests left open is closed before it is counted
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    await many(rounds)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    await until(lambda: threading.active_count() <= threads)
    await until(lambda: len(process_tree.descendants([resident_of(crib)])) <= 1 + 2 * process_spawner.MAX_IDLE)
    assert zombies_below(resident_of(crib)) == []


@pytest.mark.sampled
async def test_files_threads_and_zombies_are_as_many_as_before(crib: Spawner) -> None:
    await flat(crib, rounds(60, 500))


def test_an_order_arrives_as_it_was_sent() -> None:
    enclosed = IsolationSpec(
        backend="bwrap", mounts=(Mount(path="/a"), Mount(path="/b", is_writable=True)), hidden=("/c",)
    )
    sent = order("a", "b", identity=(1, 2), limits={"AS": 3}, memory=4, isolation=enclosed, readable=(5, "/d"))

    got = unpack(pack(sent))

    assert pack(replace(sent, isolation=None)) == {**vars(got), "isolation": None}
    assert pack(enclosed) == {**vars(got.isolation), "mounts": tuple(vars(place) for place in got.isolation.mounts)}  # type: ignore[union-attr]


def test_the_spawner_is_small() -> None:
    """What it imports, every process it forks has to carry."""
    root = str(Path(supervisor.__file__).parents[3])
    script = f"import sys; sys.path.append({root!r}); import app.sandbox.process.supervisor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)

    loaded = set(modules.stdout.split())
    assert not loaded & {"pydantic", "asyncio", "threading", "logging", "typing", "dataclasses", "subprocess", "re"}
    assert {name for name in loaded if name.startswith("app.core")} == set()


def test_what_the_enclosure_needs_is_made_before_the_first_fork() -> None:
    assert callable(apply.prepare)
    assert "apply.prepare()" in Path(supervisor.__file__).read_text()


async def test_nothing_is_left_of_what_was_begun_when_a_start_is_canceled(crib: Spawner) -> None:
    tag = f"tag{os.getpid()}x"
    for steps in range(12):
        running = asyncio.create_task(crib.start(bash(f"exec -a {tag} sleep 60")))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        try:
            spawned = await running
        except asyncio.CancelledError:
            continue
        await LocalProcess(spawned, WALLS).close()

    assert tagged(tag) == []
