"""Trees of processes: who belongs to one, what they take, and how none of them stays.

Who starts a tree is its subreaper, so that nobody can leave it: an orphan becomes a child of the one who looks.
The spawner and its keepers work with this, so it imports next to nothing.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache

MARK = "TOOLCRIB_PROCESS"
"""In the environment of everything that is started, so that it can be told after all who knew of it are dead."""

KILL_SECONDS = 5.0
STOP_ROUNDS = 50
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.01
STATUS_BYTES = 4096


def children(pid: int) -> list[int]:
    """Who was started by this process, or handed to it; also those that ended and are not reaped."""
    if not _has_lists():
        return [other for other in _all() if _parent(other) == pid]
    found: list[int] = []
    for thread in _entries(f"/proc/{pid}/task"):
        found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants(roots: Iterable[int]) -> list[int]:
    """These processes and all below them."""
    found = list(roots)
    for pid in found:
        found += children(pid)
    return list(dict.fromkeys(found))


def below(without: Collection[int] = ()) -> list[int]:
    """All below this process, but for some of its children and what is theirs."""
    return descendants(pid for pid in children(os.getpid()) if pid not in without)


def usage(pids: Iterable[int]) -> tuple[int, int]:
    """How many threads these processes have, and how much memory they hold that is in no file, in bytes.

    What is shared since a fork counts once for each.
    """
    threads = memory = 0
    for pid in pids:
        fields = _fields(f"/proc/{pid}/status")
        threads += fields.get(b"Threads", 0)
        memory += sum(fields.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap"))
    return threads, memory * 1024


def fair_memory(pids: Iterable[int]) -> int:
    """The same memory with what is shared divided by those who share it, which takes the kernel longer to find out."""
    memory = 0
    for pid in pids:
        fields = _fields(f"/proc/{pid}/smaps_rollup")
        if b"Pss_Anon" in fields:
            memory += sum(fields.get(name, 0) for name in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")) * 1024
        else:
            memory += usage([pid])[1]
    return memory


def tell_all(pids: Collection[int], *numbers: int) -> None:
    """Send signals to processes of a tree. A number that meanwhile is somebody else's is left alone."""
    family = {os.getpid(), *pids}
    for pid in pids:
        for number in numbers:
            _tell(pid, number, lambda pid: _parent(pid) in family)


def kill_all(reap: Callable[[], bool], without: Collection[int] = (), seconds: float = KILL_SECONDS) -> bool:
    """Kill all below this process and look again until nothing is left; whether that was reached.

    `reap` takes in who has ended, and says whether that were all. They are stopped first: who forks without end would
    otherwise get the room of those who were killed before it.
    """
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while not reap():
        stopped: set[int] = set()
        for _ in range(STOP_ROUNDS):
            new = [pid for pid in below(without) if pid not in stopped]
            tell_all(new, signal.SIGSTOP)
            stopped.update(new)
            if not new:
                break
        tell_all(stopped, signal.SIGKILL)
        if time.monotonic() > until:
            return reap()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True


def mark_of(pid: int) -> str:
    """What a process was marked with when it was started; nothing where that cannot be seen."""
    sign = f"{MARK}=".encode()
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(sign):
            return entry.removeprefix(sign).decode(errors="replace")
    return ""


def marked(is_meant: Callable[[str], bool]) -> list[int]:
    """All processes of this machine with such a mark, but for this one."""
    return [pid for pid in _all() if pid != os.getpid() and is_meant(mark_of(pid))]


def kill_marked(is_meant: Callable[[str], bool], seconds: float = KILL_SECONDS) -> bool:
    """Kill all processes with such a mark, whoever their parents are; whether none is left."""
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while left := marked(is_meant):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _tell(pid, number, lambda pid: is_meant(mark_of(pid)))
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True


def _tell(pid: int, number: int, is_meant: Callable[[int], bool]) -> None:
    """A signal to a process that is held while it is looked at, since its number could be given to another."""
    try:
        held = _hold(pid)
    except OSError:  # gone
        return
    try:
        if is_meant(pid):
            os.kill(pid, number) if held is None else signal.pidfd_send_signal(held, number)
    except OSError:  # gone, or became somebody we cannot reach
        pass
    finally:
        if held is not None:
            os.close(held)


def _hold(pid: int) -> int | None:
    """A process descriptor; None on a system that has none, where we have to be quick."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return None


@cache
def _has_lists() -> bool:
    """Some kernels are built without them."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _all() -> list[int]:
    return [int(name) for name in _entries("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    stat = _read(f"/proc/{pid}/stat")
    return int(stat[stat.rindex(b")") + 2 :].split(maxsplit=2)[1]) if stat else 0


def _fields(path: str) -> dict[bytes, int]:
    """Names and numbers of a file that has one of each in a line."""
    return dict(_numbers(_read(path)))


def _numbers(text: bytes) -> Iterator[tuple[bytes, int]]:
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        first = rest.split(maxsplit=1)[:1]
        if first and first[0].isdigit():
            yield name, int(first[0])


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # gone meanwhile
        return []


def _read(path: str) -> bytes:
    """A file of the kernel, read without ceremony; nothing when its process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while more := os.read(fd, STATUS_BYTES):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
