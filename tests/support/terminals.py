"""A command at a terminal of its own, and a person who types when something has been said."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli import HANG, environment


class Terminal:
    """The other side of the terminal: what was said, and a keyboard."""

    def __init__(self, process: "subprocess.Popen[bytes]", fd: int) -> None:
        self._process = process
        self._fd = fd
        self._unread = ""

    def until(self, text: str) -> str:
        """What is said up to this text, and the text itself."""
        end = time.monotonic() + HANG
        while text not in self._unread:
            assert select.select([self._fd], [], [], max(end - time.monotonic(), 0))[0], f"no {text!r}: {self._unread}"
            self._unread += os.read(self._fd, 4096).decode().replace("\r\n", "\n")
        said, _, self._unread = self._unread.partition(text)
        return said + text

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.type("\x03")
        return self.ended()

    def ended(self) -> int:
        return self._process.wait(HANG)


@contextmanager
def at_terminal(folder: Path, *args: str) -> Iterator[Terminal]:
    """`toolcrib` at a terminal, for as long as the block lasts."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", *args],
        cwd=folder,
        env=environment() | {"TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lambda: _sit_down(theirs),
        pass_fds=(theirs,),
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait(HANG)
        os.close(ours)


def _sit_down(terminal: int) -> None:
    """Make it the terminal of this process; Ctrl-C counts here, also where a shell in the background ignores it."""
    os.login_tty(terminal)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
