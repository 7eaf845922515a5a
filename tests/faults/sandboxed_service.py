"""A whole service as its own process, with one kind of walls, in a folder that others can get into."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.cli import HANG, environment, url_of

KEY = "tk_the_admin_key_of_all_walled_tests"
BACKENDS = ("landlock", "bwrap")
LONG = 120.0


class WalledService:
    """Started, killed and started again on the same data."""

    def __init__(self, folder: Path, backend: str, variables: dict[str, str] | None = None, **sandbox: Any) -> None:
        self.folder = folder
        self.backend = backend
        self._variables = variables or {}
        self._sandbox = {"backend": backend} | sandbox
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> "WalledService":
        variables = {"TOOLCRIB_SANDBOX": json.dumps(self._sandbox), "TOOLCRIB_API_KEY": KEY}
        with open(self.folder / "log", "a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", "--port", "0", "--data-dir", str(self.folder / "data")],
                cwd=self.folder,
                env=environment() | variables | self._variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.url = url_of("".join(self._process.stdout.readline() for _ in range(2)))
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LONG, trust_env=False)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._end()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._end()

    def _end(self) -> None:
        assert self._process is not None, "it was started"
        self._process.wait(HANG)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    @property
    def workspace(self) -> Path:
        return self.folder / "data" / "workspace"


@contextmanager
def walled(backend: str, variables: dict[str, str] | None = None, **sandbox: Any) -> Iterator[WalledService]:
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-walled-"))
    folder.chmod(0o755)
    service = WalledService(folder, backend, variables, **sandbox).start()
    try:
        yield service
    finally:
        service.stop()
        shutil.rmtree(folder)


async def run(client: httpx.AsyncClient, command: str, **more: Any) -> dict[str, Any]:
    """A command line through the door, to its end."""
    arguments = {"command": command} | more.pop("arguments", {})
    body = {"tool": "shell_command", "arguments": arguments, "on_ask": "deny"} | more
    answer = await client.post("/v1/calls", params={"wait": LONG}, json=body)
    assert answer.status_code == 200, answer.text
    call: dict[str, Any] = answer.json()
    return call


def alive(tag: str) -> list[str]:
    """The processes of this machine that have a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                line = command_line(int(name))
                if tag in line:
                    found.append(f"{name} {line}")
    return found


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def tree_of(pid: int) -> set[int]:
    """A process and all that come from it."""
    family = {pid}
    grown = True
    while grown:
        grown = False
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and int(name) not in family and _parent(int(name)) in family:
                    family.add(int(name))
                    grown = True
    return family


def kill_all_around(pid: int, tag: str) -> None:
    """A service and all that come from it at one moment, but for those with a word in their command line."""
    for sent in (signal.SIGSTOP, signal.SIGKILL):  # who stands still sees none of the others go
        for one in tree_of(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended by itself
                if tag not in command_line(one):
                    os.kill(one, sent)


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)
