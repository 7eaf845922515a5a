"""Services to be killed, and data directories to do it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.service_processes import Service, Zygote


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
