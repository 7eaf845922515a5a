"""A workspace, and a context without an app: a toy line that writes down what the tool told it."""

import base64
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.errors import ToolUnavailable
from app.core.mcp_resources import McpResources
from app.core.ports import HttpRequest, HttpResponse, SearchResult
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.tools import Context, Tool
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.ripgrep import Ripgrep
from tests.support.unsandboxed import BareProcesses

RECORDED = json.loads((Path(__file__).parent.parent / "scenarios" / "codex_files.json").read_text())
SEARCHER = Ripgrep(TrustedProcesses())
BARE = BareProcesses()


@dataclass
class ToyLine:
    told: list[tuple[str | None, dict[str, Any] | None]] = field(default_factory=list)
    printed: list[tuple[str, str]] = field(default_factory=list)
    needed: list[Need] = field(default_factory=list)
    called: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    forbidden: set[Need] = field(default_factory=set)
    workspace: LocalWorkspace | None = None
    uploads: dict[str, bytes] = field(default_factory=dict)
    started: list[Command] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def progress(self, title: str | None, metadata: dict[str, Any] | None) -> None:
        self.told.append((title, metadata))

    async def output(self, text: str, stream: str) -> None:
        self.printed.append((text, stream))

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None) -> None:
        self.needed.extend(needs)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        self.called.append((tool, arguments))
        return Result()

    async def keep_plan(self, plan: dict[str, Any]) -> None:
        self.plans.append(plan)

    async def send(self, request: HttpRequest) -> HttpResponse:
        raise ToolUnavailable("a toy line sends nothing")

    async def environment(self) -> dict[str, str]:
        return self.env

    async def search(self, path: str, arguments: Sequence[str], seconds: float, limit: int) -> SearchResult:
        """With the real ripgrep, as nothing else answers like it."""
        assert self.workspace is not None, "the context sets it"
        return await SEARCHER.search(self.workspace, path, arguments, approved=None, seconds=seconds, limit=limit)

    def may(self, needs: Sequence[Need]) -> list[bool]:
        return [need not in self.forbidden for need in needs]

    def tools(self) -> list[Tool]:
        return []

    def upload(self, id: str) -> BinaryIO:
        return io.BytesIO(self.uploads[id])

    async def start(self, command: Command) -> Process:
        """A real process, with nothing around it."""
        assert self.workspace is not None, "the context sets it"
        self.started.append(command)
        return await BARE.start(command, Session("admin", "ses_1"), self.workspace, lambda decision: None)

    async def open_terminal(self, command: Command, shown: str) -> Terminal:
        raise ToolUnavailable("a toy line starts nothing")

    def terminal(self, id: int) -> Terminal:
        raise ToolUnavailable("a toy line starts nothing")

    def kernel(self, kind: str, memory: int | None) -> AbstractAsyncContextManager[Kernel]:
        raise ToolUnavailable("a toy line starts nothing")

    async def drop_kernel(self, kind: str) -> bool:
        return False

    async def elicit(self, shows: dict[str, Any]) -> Answer:
        raise ToolUnavailable("nobody is asked here")

    def go_on(self) -> None:
        pass

    @property
    def session(self) -> Session:
        return Session("toy", "default")

    @property
    def attendant(self) -> BackChannel | None:
        return None

    @property
    def neighbours(self) -> McpResources:
        raise ToolUnavailable("there are no servers here")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    return root


@pytest.fixture
def recorded(workspace: Path) -> Path:
    """The workspace with the tree the peer's answers were recorded on."""
    for item in RECORDED["tree"]:
        lay_out(workspace / item["path"], item)
    return workspace


@pytest.fixture
def line() -> ToyLine:
    return ToyLine()


@pytest.fixture
def plans(line: ToyLine) -> list[dict[str, Any]]:
    return line.plans


@pytest.fixture
def ctx(workspace: Path, line: ToyLine) -> Iterator[Context]:
    local = line.workspace = LocalWorkspace(workspace)
    yield Context(id="call_1", session_id="ses_1", workspace=local, line=line)
    local.close()


def lay_out(path: Path, item: dict[str, Any]) -> None:
    if "dir" in item:
        path.mkdir()
    elif "symlink" in item:
        path.symlink_to(item["symlink"])
    elif "fifo" in item:
        os.mkfifo(path)
    elif "text" in item:
        path.write_bytes(item["text"].encode())
    else:
        path.write_bytes(base64.b64decode(item["base64"]))
    if "mtime" in item:
        os.utime(path, (item["mtime"], item["mtime"]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `case` runs on every recorded call of the tool its file is named after."""
    if "case" in metafunc.fixturenames:
        tool = metafunc.module.__name__.rpartition("test_")[2]
        cases = [case for case in RECORDED["cases"] if case["tool"] == tool]
        metafunc.parametrize("case", cases, ids=lambda case: case["id"])
