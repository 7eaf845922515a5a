"""Real kernels without an app: a toy line whose calls are those of one session."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from PIL import Image

from app.core.errors import CallError, ProgramFailed
from app.core.results import Result
from app.core.sessions import Session
from app.core.terminals import Kernel
from app.core.tools import Context
from app.core.util.clocks import SystemClock
from app.dispatch.live_calls import LiveCall
from app.dispatch.session.repl_kernels import Kernels, Start
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.process.trusted import TrustedProcesses
from app.sandbox.repl.interpreters import Interpreters
from tests.support.unsandboxed import BareProcesses
from tests.tools.conftest import ToyContext

HANG = 60.0
GIB = 1024**3
WALLED = BareProcesses()


class ToyClock(SystemClock):
    """Goes on only when it is told to."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


def open_kernels(clock: ToyClock | None = None, *, memory: int = 2 * GIB, idle: float = 1200) -> Kernels:
    recipes = Interpreters(TrustedProcesses()).recipes
    return Kernels(WALLED, recipes, clock or ToyClock(), memory=memory, idle=idle)


def call_of(session: Session, parent: Any = None) -> LiveCall:
    """As much of a call as kernels want to know."""
    return cast(LiveCall, SimpleNamespace(session=session, parent=parent))


async def answered(run: Awaitable[Result]) -> dict[str, Any]:
    """A cell's answer as scenarios have it."""
    try:
        return {"output": (await run).output}
    except ProgramFailed as error:
        return {"error": error.message, "output": error.result.output if error.result else None, "code": error.code}


def differences(found: list[dict[str, Any]], cells: list[dict[str, Any]], told: Callable[[str], str]) -> list[Any]:
    """The cells that answered otherwise, as they should have and as they did."""
    different = []
    for one, cell in zip(found, cells, strict=True):
        failed = {"error": cell["error"], "code": "ExitCode:1"} if "error" in cell else {}
        wanted = {"output": cell["output"]} | failed
        seen = {name: told(text) for name, text in one.items()}
        if seen != {name: told(text) for name, text in wanted.items()}:
            different.append((cell["code"], wanted, seen))
    return different


def drawn(width: int, height: int) -> bytes:
    """A real PNG."""
    data = io.BytesIO()
    Image.new("RGB", (width, height)).save(data, "png")
    return data.getvalue()


@dataclass(kw_only=True)
class KernelContext(ToyContext):
    """Has the kernels of one session. `answer` is what other tools return."""

    kernels: Kernels = field(default_factory=open_kernels)
    live: LiveCall = field(default_factory=lambda: call_of(Session("admin", "ses_1")))
    env: dict[str, str] = field(default_factory=dict)
    answer: Callable[[str, dict[str, Any]], Any] = lambda tool, arguments: Result(output=tool)

    def kernel(self, kind: str, memory: int | None = None) -> AbstractAsyncContextManager[Kernel]:
        start = Start(self.workspace, self.environment, lambda decision: None)
        return self.kernels.held(self.live, kind, memory, start)

    async def drop_kernel(self, kind: str) -> bool:
        return await self.kernels.drop(self.live.session.principal, self.live.session.id, kind)

    async def environment(self) -> dict[str, str]:
        return self.env

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        self.called.append((tool, arguments))
        answer = self.answer(tool, arguments)
        if isinstance(answer, CallError):
            raise answer
        return cast(Result, await answer if asyncio.iscoroutine(answer) else answer)

    def context(self, root: Path) -> Context:
        self.workspace = LocalWorkspace(root)
        self.session_id = self.live.session.id
        return self
