"""Trusted processes, with real ones that fork, hide, flood, ignore and never read."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from app.core.sandbox import Finished, FolderConfinement, Processes
from app.sandbox.isolation import landlock
from app.sandbox.process import process_tree
from app.sandbox.process.trusted import TrustedProcesses
from tests.support.services import HANG, until

LONG = 60.0


@pytest.fixture(scope="module")
def trusted() -> Iterator[TrustedProcesses]:
    trusted = TrustedProcesses()
    yield trusted
    trusted.close()


@pytest.fixture
def tag() -> Iterator[str]:
    """A word in the command line of what a test starts; at its end nothing of that name may be alive."""
    tag = f"tag{uuid.uuid4().hex}"
    yield tag
    left = tagged(tag)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def tagged(tag: str) -> list[int]:
    """The processes with this word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if tag.encode() in line:
                found.append(int(entry.name))
    return found


def children() -> set[int]:
    """Our own children, dead or alive."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat[stat.rindex(")") + 2 :].split()[1]) == os.getpid():
                found.add(int(entry.name))
    return found


def sleeper(tag: str) -> str:
    """A command that sleeps for long and can be told by its tag."""
    return f"{sys.executable} -S -c 'import time; time.sleep(600)' {tag}"


async def bash(trusted: Processes, script: str, *, seconds: float = LONG, **more: object) -> Finished:
    async with asyncio.timeout(2 * HANG):
        return await trusted.run(["bash", "-c", script], seconds=seconds, **more)  # type: ignore[arg-type]


async def test_a_program_gets_its_input_and_its_end_is_told(trusted: Processes) -> None:
    done = await bash(trusted, "cat; echo problem >&2; exit 3", stdin=b"hello")

    assert done == Finished(3, b"hello", b"problem\n")


async def test_a_program_that_a_signal_ended_has_its_negative_number(trusted: Processes) -> None:
    done = await bash(trusted, "kill -TERM $$")

    assert done == Finished(-signal.SIGTERM, b"", b"")


async def test_a_program_that_is_not_there_is_an_os_error(trusted: Processes) -> None:
    with pytest.raises(FileNotFoundError):
        await trusted.run(["/no/such/program"], seconds=LONG)


async def test_only_listed_variables_and_those_given_are_passed_on() -> None:
    service = {"PATH": os.environ["PATH"], "HOME": "/h", "LC_ALL": "C", "TOOLCRIB_API_KEY": "tk_secret", "AWS_KEY": "x"}
    trusted = TrustedProcesses(environ=service)
    done = await bash(trusted, "env", env={"MINE": "1"})
    trusted.close()

    names = {line.partition("=")[0] for line in done.stdout.decode().splitlines()}
    assert names - {"PWD", "SHLVL", "_"} == {"PATH", "HOME", "LC_ALL", "MINE", process_tree.MARK}


async def test_no_open_file_of_the_service_is_passed_on(trusted: Processes, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = await bash(trusted, "ls -l /proc/self/fd")

    assert "secret" not in done.stdout.decode()


async def test_input_that_is_never_read_holds_nobody(trusted: Processes) -> None:
    done = await bash(trusted, "exit 0", stdin=b"x" * 1_000_000)

    assert done == Finished(0, b"", b"")


async def test_input_that_is_never_read_by_one_that_hangs_does_not_move_the_deadline(
    trusted: Processes, tag: str
) -> None:
    with pytest.raises(TimeoutError):
        await bash(trusted, sleeper(tag), stdin=b"x" * 1_000_000, seconds=0.3)

    assert tagged(tag) == []


async def test_a_large_input_arrives_whole(trusted: Processes) -> None:
    done = await bash(trusted, "wc -c", stdin=b"x" * 3_000_000)

    assert done.stdout.strip() == b"3000000"


async def test_a_flood_is_kept_up_to_the_limit_and_the_rest_is_dropped(trusted: Processes) -> None:
    script = "head -c 20000000 /dev/zero | tee /dev/stderr; echo end >&2"
    done = await bash(trusted, script, limit=1000)

    assert done == Finished(0, b"\0" * 1000, b"\0" * 1000)


async def test_a_flood_without_end_stops_at_the_deadline(trusted: Processes, tag: str) -> None:
    with pytest.raises(TimeoutError):
        await bash(trusted, f"exec -a {tag} yes", seconds=0.3, limit=1000)

    assert tagged(tag) == []


async def test_one_that_was_to_be_read_until_it_is_enough_is_ended_then(trusted: Processes, tag: str) -> None:
    done = await bash(trusted, f"exec -a {tag} yes", limit=1001, until_full=True)

    assert done == Finished(-signal.SIGKILL, b"y\n" * 500 + b"y", b"", is_cut=True)
    assert tagged(tag) == []


async def test_one_that_says_just_enough_comes_to_its_own_end(trusted: Processes) -> None:
    enough = await bash(trusted, "echo 12345; exit 3", limit=6, until_full=True)
    too_much = await bash(trusted, "echo 12345 >&2; exit 3", limit=5, until_full=True)

    assert enough == Finished(3, b"12345\n", b"")
    assert too_much == Finished(3, b"", b"12345")


async def test_a_program_begins_in_the_folder_that_is_held_open_and_has_the_files_it_was_given(
    trusted: Processes, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/file").write_text("in the folder")
    folder = os.open(tmp_path / "old", os.O_RDONLY | os.O_DIRECTORY)
    with (tmp_path / "given").open("w+") as given:
        given.write("given")
        given.flush()
        (tmp_path / "old").rename(tmp_path / "new")
        script = f"cat file /proc/self/fd/{given.fileno()}"
        done = await bash(trusted, script, cwd=f"/proc/self/fd/{folder}", pass_fds=[given.fileno()])
    os.close(folder)

    assert done == Finished(0, b"in the foldergiven", b"")


@pytest.mark.skipif(not landlock.is_supported(), reason="this kernel has no Landlock")
async def test_a_confined_program_reads_only_what_it_may(trusted: Processes, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).write_text(name)
    confines = FolderConfinement(readable=(str(tmp_path / "mine"),), memory=1 << 30)

    done = await trusted.run(["cat", str(tmp_path / "mine"), str(tmp_path / "other")], confines=confines, seconds=LONG)

    assert (done.code, done.stdout) == (1, b"mine")
    assert (tmp_path / "other").read_text() == "other"


async def test_a_confined_program_has_only_so_much_memory(trusted: Processes) -> None:
    confines = FolderConfinement(readable=("/",), memory=200 * 1024**2)
    # It is told after it has begun, so it begins slowly.
    script = "import time; time.sleep(0.2); x = bytearray(400 * 1024**2)"

    done = await trusted.run([sys.executable, "-S", "-c", script], confines=confines, seconds=LONG)

    assert done.code == 1
    assert b"MemoryError" in done.stderr


async def test_one_that_ignores_signals_is_killed_at_the_deadline(trusted: Processes, tag: str) -> None:
    with pytest.raises(TimeoutError):
        await bash(trusted, f"trap '' TERM INT HUP; {sleeper(tag)}; {sleeper(tag)}", seconds=0.3)

    assert tagged(tag) == []


HIDING = {
    "a child in the background": "{it} &",
    "a child in a session of its own": "setsid {it} &",
    "a child without a parent": "(setsid {it} &)",
    "a grandchild without a parent": "(setsid bash -c '(setsid {it} &) ; exit' &)",
    "one that let go of all pipes": "(setsid {it} </dev/null >/dev/null 2>&1 &)",
    "several": "for i in 1 2 3 4 5; do (setsid {it} &); {it} & done",
}


@pytest.mark.parametrize("script", HIDING.values(), ids=HIDING.keys())
async def test_at_the_deadline_the_whole_tree_is_killed(trusted: Processes, tag: str, script: str) -> None:
    script = script.format(it=sleeper(tag).replace("'", '"') if "bash -c" in script else sleeper(tag))

    with pytest.raises(TimeoutError):
        await bash(trusted, f"{script}\n{sleeper(tag)}", seconds=0.6)

    assert tagged(tag) == []


@pytest.mark.parametrize("script", HIDING.values(), ids=HIDING.keys())
async def test_what_is_left_behind_neither_holds_the_caller_nor_lives_on(
    trusted: Processes, tag: str, script: str
) -> None:
    script = script.format(it=sleeper(tag).replace("'", '"') if "bash -c" in script else sleeper(tag))

    done = await bash(trusted, f"{script}\necho done")

    assert done == Finished(0, b"done\n", b"")
    assert tagged(tag) == []


async def test_what_the_last_in_a_pipe_still_has_to_say_is_heard(trusted: Processes) -> None:
    done = await bash(trusted, "exec > >(sleep 0.2; cat); echo late")

    assert done.stdout == b"late\n"


async def test_a_cancel_kills_the_whole_tree_before_it_comes_back(trusted: Processes, tag: str) -> None:
    running = asyncio.create_task(bash(trusted, f"(setsid {sleeper(tag)} &); {sleeper(tag)} & {sleeper(tag)}"))
    await until(lambda: len(tagged(tag)) >= 3)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert tagged(tag) == []


async def test_a_second_cancel_does_not_save_the_tree(trusted: Processes, tag: str) -> None:
    running = asyncio.create_task(bash(trusted, f"(setsid {sleeper(tag)} &); {sleeper(tag)}"))
    await until(lambda: len(tagged(tag)) >= 2)

    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await until(lambda: tagged(tag) == [])


async def test_no_zombie_and_no_file_is_left(trusted: Processes, tag: str) -> None:
    async def start_many() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(bash(trusted, f"(setsid {sleeper(tag)} >/dev/null 2>&1 &) ; exit {number}"))

    await start_many()
    before = children(), len(os.listdir("/proc/self/fd"))

    await start_many()

    assert (children(), len(os.listdir("/proc/self/fd"))) == before


async def test_who_is_init_reaps_what_it_killed(trusted: Processes) -> None:
    """A service without an init above it inherits the orphans; they must not stay as zombies."""
    script = """
import asyncio, ctypes, os
from app.sandbox.process.trusted import TrustedProcesses
from tests.sandbox.test_trusted_processes import children
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
async def main():
    trusted = TrustedProcesses()
    for pause in ("0", "0.1"):
        await trusted.run(["bash", "-c", f"(setsid sleep 600 >/dev/null 2>&1 &) ; sleep {pause}"], seconds=60)
    trusted.close()
asyncio.run(main())
print(len(children()))
"""
    root = str(Path(__file__).parents[2])
    done = await trusted.run([sys.executable, "-c", script], env={"PYTHONPATH": root}, seconds=LONG)

    assert done == Finished(0, b"0\n", b"")


def test_it_is_the_same_on_the_loop_of_the_service(tag: str) -> None:
    async def main() -> None:
        trusted = TrustedProcesses()
        left = f"(setsid {sleeper(tag)} &); {sleeper(tag)} & echo done"
        assert await bash(trusted, "cat; exit 3", stdin=b"x" * 300_000) == Finished(3, b"x" * 300_000, b"")
        before = children(), len(os.listdir("/proc/self/fd"))
        assert await bash(trusted, "exit 0", stdin=b"x" * 1_000_000) == Finished(0, b"", b"")
        assert await bash(trusted, "exec <&-; sleep 0.1", stdin=b"x" * 1_000_000) == Finished(0, b"", b"")
        assert await bash(trusted, "exec >&- 2>&-; sleep 0.1; exit 4") == Finished(4, b"", b"")
        assert await bash(trusted, "head -c 9000000 /dev/zero", limit=10) == Finished(0, b"\0" * 10, b"")
        assert await bash(trusted, left) == Finished(0, b"done\n", b"")
        with pytest.raises(TimeoutError):
            await bash(trusted, f"{left}; {sleeper(tag)}", seconds=0.4)
        assert tagged(tag) == []
        assert (children(), len(os.listdir("/proc/self/fd"))) == before
        trusted.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
