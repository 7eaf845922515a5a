"""Process trees: their members, their memory, and how to kill all of them.

The process that starts a tree is its subreaper, so an orphan becomes its child and stays in the tree. The spawner and
its supervisors use this module, so it imports next to nothing.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from functools import cache

MARK = "TOOLCRIB_PROCESS"
"""In the environment of every started process, so that it is found even when its supervisor is dead."""

KILL_SECONDS = 5.0
MAX_STOP_ROUNDS = 50
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.0005, 0.01
READ_BYTES = 4096


def children(pid: int) -> list[int]:
    """The children of a process, adopted ones and zombies included."""
    if not _has_children_files():
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


def descendants_of_self(without: Collection[int] = ()) -> list[int]:
    """All descendants of this process, except some of its children and their descendants."""
    return descendants(pid for pid in children(os.getpid()) if pid not in without)


def usage(pids: Iterable[int]) -> tuple[int, int]:
    """The number of threads of these processes, and their memory that is not file-backed, in bytes.

    Pages that are shared since a fork count once for each process.
    """
    threads = memory = 0
    for pid in pids:
        fields = _fields(f"/proc/{pid}/status")
        threads += fields.get(b"Threads", 0)
        memory += sum(fields.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap"))
    return threads, memory * 1024


def proportional_memory(pids: Iterable[int]) -> int:
    """The same memory with shared pages divided by the processes that share them (PSS), which is slower to read."""
    memory = 0
    for pid in pids:
        fields = _fields(f"/proc/{pid}/smaps_rollup")
        if b"Pss_Anon" in fields:
            memory += sum(fields.get(name, 0) for name in (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")) * 1024
        else:
            memory += usage([pid])[1]
    return memory


def signal_all(pids: Collection[int], *numbers: int) -> None:
    """Send signals to processes of a tree. A process id that was reused meanwhile is skipped."""
    family = {os.getpid(), *pids}
    for pid in pids:
        for number in numbers:
            _signal(pid, number, lambda pid: _parent(pid) in family)


def kill_all(reap: Callable[[], bool], without: Collection[int] = (), seconds: float = KILL_SECONDS) -> bool:
    """Kill all descendants of this process until none is left; whether that was reached.

    `reap` reaps ended children and answers whether none is left. Processes are stopped before they are killed: a fork
    bomb would otherwise refill the room of those killed first.
    """
    until, pause = time.monotonic() + seconds, MIN_PAUSE_SECONDS
    while not reap():
        stopped: set[int] = set()
        for _ in range(MAX_STOP_ROUNDS):
            new = [pid for pid in descendants_of_self(without) if pid not in stopped]
            signal_all(new, signal.SIGSTOP)
            stopped.update(new)
            if not new:
                break
        signal_all(stopped, signal.SIGKILL)
        if time.monotonic() > until:
            return reap()
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
    return True


def mark_of(pid: int) -> str:
    """The mark that a process was started with; empty where its environment cannot be read."""
    prefix = f"{MARK}=".encode()
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode(errors="replace")
    return ""


def find_marked(matches: Callable[[str], bool]) -> list[int]:
    """All processes of this machine whose mark matches, except this one."""
    return [pid for pid in _all() if pid != os.getpid() and matches(mark_of(pid))]


def kill_marked(matches: Callable[[str], bool], seconds: float = KILL_SECONDS) -> bool:
    """Kill all processes whose mark matches, wherever they are in the tree; whether none is left."""
    until, pause = time.monotonic() + seconds, MIN_PAUSE_SECONDS
    while left := find_marked(matches):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _signal(pid, number, lambda pid: matches(mark_of(pid)))
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
    return True


def _signal(pid: int, number: int, matches: Callable[[int], bool]) -> None:
    """Signal a process if it matches. A pidfd is open meanwhile, because the process id could be reused."""
    try:
        pidfd = _open_pidfd(pid)
    except OSError:  # gone
        return
    try:
        if matches(pid):
            os.kill(pid, number) if pidfd is None else signal.pidfd_send_signal(pidfd, number)
    except OSError:  # gone, or it changed its user
        pass
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _open_pidfd(pid: int) -> int | None:
    """None on a kernel without pidfds."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return None


@cache
def _has_children_files() -> bool:
    """Some kernels are built without them."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _all() -> list[int]:
    return [int(name) for name in _entries("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    stat = _read(f"/proc/{pid}/stat")
    return int(stat[stat.rindex(b")") + 2 :].split(maxsplit=2)[1]) if stat else 0


def _fields(path: str) -> dict[bytes, int]:
    """The fields of a /proc file with one name and number per line."""
    fields: dict[bytes, int] = {}
    for line in _read(path).splitlines():
        name, _, rest = line.partition(b":")
        first = rest.split(maxsplit=1)[:1]
        if first and first[0].isdigit():
            fields[name] = int(first[0])
    return fields


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # gone meanwhile
        return []


def _read(path: str) -> bytes:
    """A file of /proc; empty when its process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while chunk := os.read(fd, READ_BYTES):
            data += chunk
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
