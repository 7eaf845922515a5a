"""Services to be killed, and data directories to do it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.service_processes import Service, Zygote

HITS = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session")
def hits(pytestconfig: pytest.Config) -> dict[str, int]:
    """How often each point at which a service can be killed was reached; shown when all is done."""
    return pytestconfig.stash.setdefault(HITS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(HITS, None):
        terminalreporter.section(f"{sum(found.values())} kills at {len(found)} points")
        terminalreporter.line(", ".join(f"{point} {count}" for point, count in found.items()))


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def service(zygote: Zygote, tmp_path: Path) -> Iterator[Service]:
    """A fresh data directory with a service on it."""
    service = Service(zygote, tmp_path / "data").start()
    yield service
    service.kill()
