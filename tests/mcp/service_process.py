"""A whole service as its own process, with MCP servers that misbehave beside it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.faults.sandboxed_service import KEY, WalledService, alive, command_line, memory_mb, walled

HOSTILE = Path(__file__).with_name("hostile")
HANG = 60.0
ALLOWED = [{"permission": "mcp", "action": "allow"}]
Raw = dict[str, Any]
T = TypeVar("T")


def hostile(file: str, *args: str, **more: Any) -> Raw:
    """How a server of that folder is started."""
    return {"command": sys.executable, "args": [str(HOSTILE / f"{file}.py"), *args]} | more


def variables(servers: Mapping[str, Raw], **settings: Any) -> dict[str, str]:
    """The environment of a service that has these servers and lets everybody call them."""
    given = {"mcp": {"servers": dict(servers)}, "rules": ALLOWED, "grace": 1} | settings
    return {
        f"TOOLCRIB_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }


class Fleet:
    """The service, as a client sees it, and its servers, as the machine sees them."""

    def __init__(self, service: WalledService) -> None:
        self.service = service
        headers = {"Authorization": f"Bearer {KEY}"}
        self.client = httpx.Client(headers=headers, timeout=HANG, trust_env=False)
        self.connect()

    def connect(self) -> None:
        """Speak to the service where it is now."""
        self.client.base_url = httpx.URL(self.service.url)

    @property
    def memory(self) -> float:
        return memory_mb(self.service.pid)

    @contextmanager
    def growth(self) -> Iterator[Callable[[], float]]:
        """By how many MB the service was larger at its largest than it was before."""
        before = self.memory
        Path(f"/proc/{self.service.pid}/clear_refs").write_text("5")  # the peak starts anew
        yield lambda: memory_mb(self.service.pid, "VmHWM") - before

    def call(self, tool: str, arguments: Raw | None = None, **more: Any) -> Raw:
        """A call to its end."""
        return self.ended(self.begin(tool, arguments, **more)["id"])

    def begin(self, tool: str, arguments: Raw | None = None, **more: Any) -> Raw:
        server, _, name = tool.partition("/")
        body = {"tool": f"mcp__{server}__{name}" if name else server, "arguments": arguments or {}} | more
        answer = self.client.post("/v1/calls", params={"wait": 0}, json=body)
        assert answer.status_code in (200, 202), answer.text
        call: Raw = answer.json()
        return call

    def ended(self, id: str) -> Raw:
        call: Raw = self.client.get(f"/v1/calls/{id}", params={"wait": 30}).json()
        assert call["status"] in ("completed", "error"), call
        return call

    def progress(self, id: str) -> str:
        """The first word of a running call's server: it has the call."""
        told = self.until(lambda: self.events(id, "call.progress"), f"no progress of {id}")
        return str(told[0]["data"]["title"])

    def events(self, id: str, type: str) -> list[Raw]:
        page = self.client.get(f"/v1/calls/{id}/events", headers={"Accept": "application/json"}).json()
        return [event for event in page["data"] if event["type"] == type]

    def server(self, name: str) -> Raw:
        found: Raw = self.client.get(f"/v1/mcp/servers/{name}").json()
        return found

    def wait_for(self, name: str, *states: str) -> Raw:
        """Its status, once it is one of these."""
        self.until(lambda: self.server(name)["state"] in states, f"{name} never was {states}")
        return self.server(name)

    def works(self, name: str) -> bool:
        """Whether its echo answers, as soon as it can."""
        return bool(self.until_ended(f"{name}/echo", {"text": "still here"})["result"]["output"] == "still here")

    def until_ended(self, tool: str, arguments: Raw) -> Raw:
        """A call that is made again for as long as the server is not back."""

        def attempt() -> Raw | None:
            call = self.call(tool, arguments)
            return call if call["status"] == "completed" else None

        call = self.until(attempt, f"{tool} never worked")
        assert call is not None
        return call

    def until(self, question: Callable[[], T], otherwise: str = "it never was so") -> T:
        until = time.monotonic() + HANG
        while not (found := question()):
            assert time.monotonic() < until, otherwise
            time.sleep(0.02)
        return found


@contextmanager
def fleet(servers: Mapping[str, Raw], **settings: Any) -> Iterator[Fleet]:
    with walled("auto", variables(servers, **settings)) as service:
        found = Fleet(service)
        try:
            yield found
        finally:
            found.client.close()


def until_gone(tag: str) -> list[str]:
    """What has a word in its command line and is still alive when it had its time."""
    until = time.monotonic() + HANG
    while (left := alive(tag)) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def pids(tag: str, part: str = "") -> list[int]:
    """The processes with both words in their command lines."""
    return [int(line.split()[0]) for line in alive(tag) if part in line]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" or not command_line(pid)
    return False
