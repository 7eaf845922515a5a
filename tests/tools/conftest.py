"""A workspace, and a context without a service that records what the tool did."""

import base64
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from app.core.ports import SearchResult
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.tools import MAX_SEARCH_BYTES, Context
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.ripgrep import Ripgrep
from tests.support.tool_contexts import StubContext
from tests.support.unsandboxed import BareProcesses

RECORDED = json.loads((Path(__file__).parent.parent / "scenarios" / "codex_files.json").read_text())
SEARCHER = Ripgrep(TrustedProcesses())
BARE = BareProcesses()


@dataclass(kw_only=True)
class ToyContext(StubContext):
    """Records what the tool did; searches with the real ripgrep and starts real processes without a sandbox."""

    progress: list[tuple[str | None, dict[str, Any] | None]] = field(default_factory=list)
    printed: list[tuple[str, str]] = field(default_factory=list)
    needed: list[Need] = field(default_factory=list)
    called: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    forbidden: set[Need] = field(default_factory=set)
    uploads: dict[str, bytes] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        self.progress.append((title, metadata))

    async def output(self, text: str, stream: str = "stdout") -> None:
        self.printed.append((text, stream))

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None = None) -> None:
        self.needed.extend(needs)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        self.called.append((tool, arguments))
        return Result()

    async def save_plan(self, plan: dict[str, Any]) -> None:
        self.plans.append(plan)

    async def environment(self) -> dict[str, str]:
        return self.env

    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = MAX_SEARCH_BYTES
    ) -> SearchResult:
        return await SEARCHER.search(self.workspace, path, arguments, approved=None, seconds=seconds, limit=limit)

    def is_allowed(self, needs: Sequence[Need]) -> list[bool]:
        return [need not in self.forbidden for need in needs]

    def upload(self, id: str) -> BinaryIO:
        return io.BytesIO(self.uploads[id])

    async def start(self, command: Command) -> Process:
        self.commands.append(command)
        return await BARE.start(command, Session("admin", "ses_1"), self.workspace, lambda decision: None)


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
def plans(toy: ToyContext) -> list[dict[str, Any]]:
    return toy.plans


@pytest.fixture
def toy(workspace: Path) -> Iterator[ToyContext]:
    local = LocalWorkspace(workspace)
    yield ToyContext(workspace=local)
    local.close()


@pytest.fixture
def ctx(toy: ToyContext) -> Context:
    return toy


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
