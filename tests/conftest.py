"""A data directory with a migrated database, toy tools, and houses on them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import settings

from app.store import db, migrate
from tests.support.services import Crib, RunningService, copy_database
from tests.support.toy_tools import Toys

# No test asserts a wall-clock time. `make faults FULL=1` selects the profile `full`.
settings.register_profile("default", deadline=None)
settings.register_profile("full", deadline=None, max_examples=2_000)
settings.load_profile("default")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrated once, copied for every test."""
    data_dir = tmp_path_factory.mktemp("empty")
    migrate.upgrade(db.database_url(data_dir, None))
    return data_dir / db.FILE_NAME


@pytest.fixture
def data_dir(empty_database: Path, tmp_path: Path) -> Path:
    return copy_database(empty_database, tmp_path / "data")


@pytest.fixture
def toys() -> Toys:
    return Toys()


@pytest.fixture
async def crib(data_dir: Path, toys: Toys) -> AsyncIterator[Crib]:
    """A house without a door; a test that wants hooks or settings sets them and opens it anew."""
    crib = Crib(data_dir, toys)
    yield crib
    await crib.close()


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    """A house with its door, open."""
    service = RunningService(data_dir, toys)
    await service.open()
    yield service
    await service.close()


@pytest.fixture
def client(service: RunningService) -> httpx.AsyncClient:
    """A client with the admin's key; closed with the service."""
    return service.client
