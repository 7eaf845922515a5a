"""Enclosures to try: a small house with a workspace, something to hide and ears, and processes started in it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from app.sandbox.isolation.bubblewrap import OPTIONAL
from app.sandbox.process.spawner import IsolationSpec, Mount, SpawnRequest

ROOT = Path(__file__).parents[2]
STARTER = Path(__file__).with_name("isolated_child.py")
CHILD, ORDINARY = 61_100, 61_200
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
PATH = "/usr/local/bin:/usr/bin:/bin"
BWRAP = shutil.which("bwrap", path=PATH) or "/usr/bin/bwrap"
PYTHON = shutil.which("python3", path=PATH) or sys.executable
CANARY = "canary-4711"
SECONDS = 60

IS_ROOT = os.geteuid() == 0
WHO = ("identity", "ordinary") if IS_ROOT else ("ordinary",)
"""Whether the service is root and its children somebody else, or all of them the same ordinary user."""

TIERS = ("bwrap", "landlock")


@dataclass(frozen=True)
class Outcome:
    out: str
    err: str
    code: int
    failure: str
    heard: list[str]

    @property
    def answers(self) -> dict[str, Any]:
        """What a probe tells."""
        answers: dict[str, Any] = json.loads(self.out)
        return answers


@dataclass(frozen=True)
class House:
    """`base` is open to all, so that only walls can deny what is tried there."""

    base: Path
    who: str
    sockets: dict[str, Any] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    @property
    def temporary(self) -> Path:
        return self.base / "temporary"

    @property
    def user(self) -> int:
        """Who the processes are in the end."""
        return os.geteuid() if not IS_ROOT else CHILD if self.who == "identity" else ORDINARY

    def isolation_spec(self, tier: str, **changes: Any) -> IsolationSpec:
        places = [*(Mount(path=path) for path in SYSTEM), Mount(path=str(self.workspace), is_writable=True)]
        walls = IsolationSpec(
            backend=tier,  # type: ignore[arg-type]
            mounts=tuple(places),
            temp_dir=str(self.temporary),
            program=BWRAP,
            options=OPTIONAL,
            tmpfs_bytes=4 * 1024 * 1024,
        )
        return replace(walls, **changes)

    def order(self, tier: str, *argv: str, env: dict[str, str] | None = None, **changes: Any) -> SpawnRequest:
        own = {"PATH": PATH, "HOME": str(self.workspace), "TMPDIR": str(self.temporary), "LANG": "C.UTF-8"}
        return SpawnRequest(
            argv=argv,
            env=own | (env or {}),
            cwd=str(self.workspace),
            identity=(CHILD, CHILD) if IS_ROOT and self.who == "identity" else None,
            isolation=self.isolation_spec(tier, **changes),
        )

    def run(self, order: SpawnRequest, **told: Any) -> Outcome:
        """Start it as the service would, and wait for its end."""
        with self.started(order, stdin=subprocess.DEVNULL, **told) as (process, report):
            out, err = process.communicate(timeout=SECONDS)
            return Outcome(out, err, **json.loads(report.read()))

    @contextmanager
    def started(self, order: SpawnRequest, stdin: int, **told: Any) -> Iterator[tuple["subprocess.Popen[str]", Any]]:
        reads, writes = os.pipe()
        told |= {"order": asdict(order), "report": writes, "user": [ORDINARY, ORDINARY] if IS_ROOT else None}
        if self.who == "identity":
            told["user"] = None
        is_terminal = order.has_terminal
        with open(reads) as report:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", STARTER, ROOT, json.dumps(told)],
                stdin=stdin,
                stdout=stdin if is_terminal else subprocess.PIPE,
                stderr=stdin if is_terminal else subprocess.PIPE,
                text=True,
                pass_fds=(writes,),
                start_new_session=True,
                env={"PATH": PATH, "CANARY": CANARY},
            )
            os.close(writes)
            try:
                yield process, report
            finally:
                process.kill()
                process.communicate()


@contextmanager
def opened(who: str) -> Iterator[House]:
    base = Path(tempfile.mkdtemp(prefix="toolcrib-house-"))
    base.chmod(0o755)
    house = House(base, who, sockets_in(base / "workspace"))
    for name, mode in (("workspace", 0o755), ("temporary", 0o700), ("outside", 0o777), ("state", 0o755)):
        (base / name).mkdir()
        (base / name).chmod(mode)
        os.chown(base / name, house.user, house.user if IS_ROOT else -1)
    for name in ("state/secret", "outside/file"):
        (base / name).write_text(CANARY)
        (base / name).chmod(0o666)
    try:
        yield house
    finally:
        shutil.rmtree(base)


def sockets_in(folder: Path) -> dict[str, Any]:
    """Where the service of a house listens. The unix sockets are where the processes can see them."""
    abstract = f"\0{folder}"
    addresses: dict[str, Any] = {"path": str(folder / "s"), "datagrams": str(folder / "d"), "abstract": abstract}
    for name, host, kind in (
        ("tcp4", "127.0.0.1", socket.SOCK_STREAM),
        ("tcp6", "::1", socket.SOCK_STREAM),
        ("udp4", "127.0.0.1", socket.SOCK_DGRAM),
        ("udp6", "::1", socket.SOCK_DGRAM),
    ):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as free:
            free.bind((host, 0))
            addresses[name] = [host, free.getsockname()[1]]
    return addresses
