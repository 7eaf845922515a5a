"""Servers that are killed: the caller knows at once, the server is back soon, and nothing of the old one is left."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from bench.load import free_port
from tests.mcp.service_process import HANG, Fleet, fleet, hostile, is_zombie, kill, pids, until_gone

KILLS = 5
WRAPPED = ("shell", "background", "daemon", "holder")
LEAVING = ("forks", "forks_away", "litters")
YEARS = ("2025", "2026")
RESTARTING = Path(__file__).with_name("restarting_server.py")


@pytest.fixture(scope="module")
def tag() -> str:
    return f"tag{uuid4().hex}"


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {year: free_port() for year in YEARS}


@pytest.fixture(scope="module")
def servers(tag: str, ports: dict[str, int]) -> Iterator[Fleet]:
    """All ends with the service, which ends in good order."""
    programs = {way: hostile("wrappers", way, f"{tag}-{way}") for way in ("plain", *WRAPPED, *LEAVING)}
    remote = {f"remote{year}": {"url": f"http://127.0.0.1:{port}/mcp"} for year, port in ports.items()}
    with fleet(programs | remote) as found:
        for way in ("plain", *WRAPPED):
            found.wait_for(way, "connected")
        yield found
    assert until_gone(tag) == []


def test_a_killed_servers_callers_know_at_once_and_it_is_back_each_time(servers: Fleet) -> None:
    for _ in range(KILLS):
        call = servers.begin("plain/waits")
        pid = int(servers.progress(call["id"]))
        kill(pid)

        assert servers.ended(call["id"])["error"]["code"] == "McpDisconnected"
        assert not is_zombie(pid)
        assert servers.works("plain")


@pytest.mark.parametrize(
    ("way", "whom"),
    [
        ("shell", "wrapper"),
        ("background", "server"),
        ("daemon", "wrapper"),
        ("holder", "server"),
        pytest.param("shell", "server", marks=pytest.mark.faults),
        pytest.param("background", "wrapper", marks=pytest.mark.faults),
        pytest.param("daemon", "server", marks=pytest.mark.faults),
        pytest.param("holder", "wrapper", marks=pytest.mark.faults),
    ],
)
def test_of_a_server_in_a_wrapper_nothing_stays_whichever_is_killed(
    servers: Fleet, tag: str, way: str, whom: str
) -> None:
    call = servers.begin(f"{way}/waits")
    inner = int(servers.progress(call["id"]))
    old = pids(f"{tag}-{way}")
    kill(inner if whom == "server" else pids(f"{tag}-{way}", "/bin/sh")[0])

    assert servers.ended(call["id"])["error"]["code"] == "McpDisconnected"
    assert servers.works(way)
    assert not set(old) & set(pids(f"{tag}-{way}"))


@pytest.mark.parametrize("way", LEAVING)
def test_of_a_program_that_ends_and_leaves_others_behind_nothing_stays(servers: Fleet, tag: str, way: str) -> None:
    """It is started again and again, and each time what it left is gone before the next one comes."""
    first = servers.wait_for(way, "failed")
    servers.client.post(f"/v1/mcp/servers/{way}/reconnect")
    servers.wait_for(way, "failed")

    assert first["error"]
    assert len(pids(f"{tag}-{way}")) <= 2


@pytest.mark.faults
def test_nothing_outlives_a_service_that_is_killed(servers: Fleet, tag: str) -> None:
    for way in ("plain", *WRAPPED):
        assert servers.works(way)
    servers.service.kill()

    assert until_gone(tag) == []
    servers.service.start()
    servers.connect()
    for way in ("plain", *WRAPPED):
        servers.wait_for(way, "connected")


@pytest.mark.parametrize("year", ["2025", pytest.param("2026", marks=pytest.mark.faults)])
def test_a_server_over_http_that_is_killed_costs_the_call_it_had_and_no_other(
    servers: Fleet, ports: dict[str, int], year: str
) -> None:
    remote = f"remote{year}"
    with restarting(ports[year], year):
        servers.client.post(f"/v1/mcp/servers/{remote}/reconnect")
        first = servers.until_ended(f"{remote}/pid", {})["result"]["output"]
        call = servers.begin(f"{remote}/waits")
        servers.progress(call["id"])
    ended = servers.ended(call["id"])

    with restarting(ports[year], year):
        second = servers.until_ended(f"{remote}/pid", {})["result"]["output"]
        third = servers.call(f"{remote}/pid")["result"]["output"]
        version = servers.server(remote)["protocol_version"]

    assert ended["error"]["code"] == "McpDisconnected"
    assert first != second == third
    assert version.startswith(year)


@contextmanager
def restarting(port: int, year: str) -> Iterator[None]:
    """A server made with the SDK, ready to be spoken to; killed in the end."""
    process = subprocess.Popen([sys.executable, str(RESTARTING), str(port), year])
    try:
        until = time.monotonic() + HANG
        while not _is_up(port):
            assert time.monotonic() < until, "the server did not come up"
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(HANG)


def _is_up(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/mcp", trust_env=False)
    except httpx.TransportError:
        return False
    return True
