"""The `toolcrib` command as tests use it: real processes, without what a developer may have set."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli_forkserver import fork_server

ROOT = Path(__file__).parent.parent.parent
HANG = 60


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCRIB_")}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def toolcrib(folder: Path, *args: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m app` with these arguments, in a process that is forked with the imports done."""
    return fork_server(ROOT).run(list(args), folder, environment() | variables, stdin, HANG)


def start(folder: Path, *args: str) -> tuple[subprocess.Popen[str], str]:
    """A service on a free port, and what it announced."""
    service = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", "0", *args],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    return service, "".join(service.stdout.readline() for _ in range(3))


def stop(service: subprocess.Popen[str]) -> int:
    service.send_signal(signal.SIGTERM)
    service.communicate(timeout=HANG)
    return service.returncode


@contextmanager
def serving(folder: Path, *args: str) -> Iterator[str]:
    """A service for as long as the block lasts; what it announced."""
    service, announced = start(folder, *args)
    try:
        yield announced
    finally:
        code = stop(service)
    assert code == 0


def url_of(announced: str) -> str:
    return announced.split(" is ready at ")[1].split()[0]


def key_of(folder: Path) -> str:
    return (folder / ".toolcrib" / "admin.key").read_text().strip()
