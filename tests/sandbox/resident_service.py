"""A small service that looks at its walls and starts one process behind them, as whoever and wherever it is told to.

In and out: a JSON object. First it becomes what it is to be, then it begins anew, as if it had never been anybody
else. What it is to be is done with few imports, because it is done twice.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.sandbox import syscalls
from app.sandbox.isolation import apply
from app.sandbox.isolation.seccomp import ALLOW, ANY_BIT, EQUAL, ERRNO, NUMBER, SYSCALLS, Assembler, argument, install
from app.sandbox.process.spawner import Mount

if TYPE_CHECKING:
    from app.sandbox.process.spawner import SpawnRequest
    from tests.sandbox.sandboxed import Enclosed

SOURCES = str(Path(__file__).parents[2])
NEWUSER = 0x10000000
NOT_THERE, NOT_ALLOWED = 38, 1
KEPT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
"""The capabilities that root has in a container if nobody says otherwise."""


def main() -> None:
    told = json.loads(sys.argv[1])
    if (become := told.pop("become", None)) is not None:
        begin(become)
        os.execv(sys.executable, [sys.executable, __file__, json.dumps(told)])
    sys.stdout.write(json.dumps(asyncio.run(look(told))))


def begin(become: dict[str, Any]) -> None:
    """Be a service of an ordinary user, or one in a container; this Python is to be reached there as well."""
    if os.geteuid() == 0:
        apply.grant_path_access([Mount(path=path) for path in (sys.base_prefix, sys.prefix, SOURCES)], 65_534, 65_534)
    if "container" in become:
        contain()
    if become.get("user") and os.geteuid() == 0:
        syscalls.become_user(*become["user"])


def contain() -> None:
    """No user namespaces, and of root's capabilities only the usual ones."""
    if os.geteuid() == 0:
        for capability in range(64):
            if capability not in KEPT and syscalls.libc().prctl(syscalls.BOUNDING_DROP, capability, 0, 0, 0) < 0:
                break
    numbers, steps = SYSCALLS[os.uname().machine], Assembler()
    steps.load(NUMBER)
    steps.jump(EQUAL, numbers["clone3"], no="others")
    steps.ret(ERRNO | NOT_THERE)
    steps.label("others")
    steps.jump(EQUAL, numbers["clone"], yes="flags")
    steps.jump(EQUAL, numbers["unshare"], yes="flags")
    steps.ret(ALLOW)
    steps.label("flags")
    steps.load(argument(0))
    steps.jump(ANY_BIT, NEWUSER, no="fine")
    steps.ret(ERRNO | NOT_ALLOWED)
    steps.label("fine")
    steps.ret(ALLOW)
    if os.geteuid() != 0:
        syscalls.prctl(syscalls.NO_NEW_PRIVS, 1)  # else only root may
    install(steps.assemble())


async def look(told: dict[str, Any]) -> dict[str, Any]:
    from app.sandbox.process.spawner import Spawner
    from tests.sandbox.sandboxed import enclosed

    spawner = Spawner()
    there = enclosed(spawner, Path(told["data"]), backend=told["backend"], alter=unwalled if told["broken"] else whole)
    try:
        report = await there.inspector.known()
        said = await run(there, Path(told["workspace"]), told["script"]) if report.backend else None
    finally:
        there.processes.close()
        await asyncio.to_thread(spawner.close)
    return {"uid": os.getuid(), "report": report.view(), "said": said}


def whole(order: "SpawnRequest") -> "SpawnRequest":
    return order


def unwalled(order: "SpawnRequest") -> "SpawnRequest":
    return replace(order, isolation=replace(order.isolation, backend="none") if order.isolation else None)


async def run(there: "Enclosed", root: Path, script: str) -> str:
    from app.core.sandbox import Command
    from app.core.sessions import Session
    from app.sandbox.files.workspace import LocalWorkspace

    session, workspace = Session("ann", "one"), LocalWorkspace(root)
    child = await there.processes.start(Command(argv=("sh", "-c", script)), session, workspace, lambda decision: None)
    try:
        said = b""
        while (piece := await child.read()) is not None:
            said += piece.data
        return said.decode()
    finally:
        await child.close()


if __name__ == "__main__":
    main()
