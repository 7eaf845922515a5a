"""The official conformance suites, against the fixture alone and against Toolcrib with the fixture behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.auth_proxy import doorway
from tests.conformance.mcp_servers import ALLOW_ALL, fixture
from tests.conformance.paths import conformance, fixture_over_http
from tests.conformance.suites import Verdict, server_suite
from tests.support.mcp_service import crib
from tests.support.services import KEY

pytestmark = conformance

FORESEEN = Path(__file__).parent / "expected-failures.yml"


class Suite(NamedTuple):
    """What is run, and how many scenarios that are: a suite that runs none is not passed."""

    release: str
    options: tuple[str, ...]
    scenarios: int


STABLE = Suite("stable", (), 30)
OLDER = Suite("next", ("--suite", "all", "--spec-version", "2025-11-25"), 33)
NEWER = Suite("next", ("--suite", "all", "--spec-version", "2026-07-28"), 40)
SUITES = [pytest.param(STABLE, id="0.1"), pytest.param(OLDER, id="0.2-2025"), pytest.param(NEWER, id="0.2-2026")]
PAIRS = [
    *(pytest.param("stdio", *suite.values, id=f"stdio-{suite.id}") for suite in SUITES),
    *(pytest.param("http", *suite.values, id=f"http-{suite.id}") for suite in SUITES),
    # A program of the older era does not say for which call it asks; the newer suite leaves calls waiting.
    *(pytest.param("stdio-2025", *suite.values, id=f"older-stdio-{suite.id}") for suite in SUITES[:2]),
]


@pytest.mark.parametrize("suite", SUITES)
async def test_the_fixture_itself_passes(tmp_path: Path, unused_tcp_port: int, suite: Suite) -> None:
    async with fixture_over_http(tmp_path, unused_tcp_port) as url:
        verdict = await server_suite(suite.release, url, tmp_path, *suite.options)

    assert_passed(verdict, suite)
    assert verdict.warnings == []


@pytest.mark.parametrize(("way", "suite"), PAIRS)
async def test_toolcrib_passes_with_the_fixture_behind_it(
    data_dir: Path, tmp_path: Path, unused_tcp_port: int, way: str, suite: Suite
) -> None:
    async with (
        reached(way, tmp_path, unused_tcp_port) as server,
        crib(data_dir, {"fixture": server}, rules=[ALLOW_ALL], private_networks=["127.0.0.0/8"]) as service,
        doorway(service.port, KEY) as port,
    ):
        url = f"http://127.0.0.1:{port}/mcp?names=plain"
        options = (*suite.options, "--expected-failures", str(FORESEEN))
        verdict = await server_suite(suite.release, url, tmp_path, *options)

    assert_passed(verdict, suite)


@asynccontextmanager
async def reached(way: str, folder: Path, port: int) -> AsyncIterator[dict[str, Any]]:
    """The fixture as one of Toolcrib's servers, whose tools may run together and whose roots are the client's."""
    shared = {"roots": "caller", "parallel": True}
    if way != "http":
        yield fixture(way, **shared)
        return
    async with fixture_over_http(folder, port) as url:
        yield {"kind": "http", "url": url, **shared}


def assert_passed(verdict: Verdict, suite: Suite) -> None:
    assert verdict.code == 0, verdict.output
    assert len(verdict.scenarios) == suite.scenarios, verdict.output
