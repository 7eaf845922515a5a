"""Services as tests hold them: started, killed, started again on the same data directory."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tests.faults.data_checks import open_calls
from tests.faults.fault_service import EFFECTS, KEY, ROOT

RUNNER = Path(__file__).with_name("fault_service.py")
HANG = 60.0


class Zygote:
    """The process that has imported everything and forks services."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(RUNNER), "--zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(TOOLCRIB_GRACE="1", **environment),
        )

    def start(self, data_dir: Path) -> tuple[int, int]:
        """A service on this data directory; its pid and port, once it is ready."""
        pid, port = self.start_armed(data_dir, "")
        if not port:
            self.wait(pid)
            raise RuntimeError(f"the service did not start:\n{log_of(data_dir)[-4000:]}")
        return pid, port

    def start_armed(self, data_dir: Path, fault: str) -> tuple[int, int]:
        """A service that will kill itself; without a port when it did so before it was ready."""
        pid, _, url = self._ask(f"start {data_dir} {fault}").partition(" ")
        return int(pid), int(url.rpartition(":")[2] or 0)

    def attempt(self, data_dir: Path, seconds: float) -> None:
        """A service that is killed this soon after its start."""
        assert self._ask(f"try {seconds} {data_dir}") == f"-{signal.SIGKILL.value}"

    def wait(self, pid: int) -> int:
        """Reap a child that is ending; its exit code, negative for a signal."""
        return int(self._ask(f"wait {pid}"))

    def close(self) -> None:
        self._in.close()
        self._process.wait(HANG)
        self._out.close()

    def _ask(self, line: str) -> str:
        self._in.write(line + "\n")
        self._in.flush()
        answer = self._out.readline()
        if not answer:
            raise RuntimeError("the zygote is gone")
        return answer.strip()

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


class Service:
    """One data directory and the service that runs on it now."""

    def __init__(self, zygote: Zygote, data_dir: Path) -> None:
        self._zygote = zygote
        self.data_dir = data_dir
        self.port = 0
        self.starts = 0
        self._pid: int | None = None

    @property
    def database(self) -> Path:
        return self.data_dir / "toolcrib.db"

    @property
    def effects(self) -> list[str]:
        """The marks that tools left in the world."""
        path = self.data_dir / EFFECTS
        return path.read_text().splitlines() if path.exists() else []

    def start(self) -> "Service":
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._pid, self.port = self._zygote.start(self.data_dir)
        self.starts += 1
        return self

    def start_armed(self, fault: str) -> bool:
        """A service that kills itself at a point; whether it came up before."""
        self._pid, self.port = self._zygote.start_armed(self.data_dir, fault)
        self.starts += 1
        return bool(self.port)

    def ended(self) -> int:
        """The exit code of a service that ends by itself."""
        assert self._pid is not None
        code = self._zygote.wait(self._pid)
        self._pid = None
        return code

    def attempt(self, seconds: float) -> None:
        """Start, and be killed this soon after."""
        self._zygote.attempt(self.data_dir, seconds)

    def kill(self) -> None:
        """kill -9: no goodbye."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._zygote.wait(self._pid)
            self._pid = None

    def terminate(self) -> int:
        """SIGTERM: an orderly end; the exit code."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGTERM)
        return self.ended()

    async def settle(self) -> None:
        """Wait until every call has its end."""
        until = time.monotonic() + HANG
        while left := open_calls(self.database):
            assert time.monotonic() < until, f"calls never ended: {left[:5]}"
            await asyncio.sleep(0.01)

    def log(self) -> str:
        return log_of(self.data_dir)


class Started:
    """A service as an operator starts it: a process of its own, with its own exit code."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self._said = tempfile.TemporaryFile("w+")  # not a pipe, which a log fills  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=ROOT,
            env=clean_environment(TOOLCRIB_API_KEY=KEY, **environment),
        )
        self.port = self._read_port()

    def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it said on stderr."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        self.process.communicate(timeout=HANG)
        with self._said:
            self._said.seek(0)
            return self.process.returncode, self._said.read()

    def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.wait()

    def _read_port(self) -> int:
        """From the line that says where it is; 0 when it ended without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        return int(found[1]) if found else 0


def runner(data_dir: Path, *more: str) -> list[str]:
    """The service with the toys."""
    return [sys.executable, str(RUNNER), "--data-dir", str(data_dir), *more]


def command_line(data_dir: Path) -> list[str]:
    """The service as it is shipped."""
    return [sys.executable, "-m", "app", "serve", "--data-dir", str(data_dir), "--port", "0"]


def log_of(data_dir: Path) -> str:
    path = data_dir.with_suffix(".log")
    return path.read_text() if path.exists() else ""


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what a developer may have set for a service of his own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TOOLCRIB_")} | more
