"""A bench to open links at, with a spawner of its own."""

from collections.abc import AsyncIterator

import pytest

from app.sandbox.process.trusted import TrustedProcesses
from tests.mcp.connections import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    processes = TrustedProcesses()
    yield Bench(processes)
    processes.close()
