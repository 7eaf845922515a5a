"""What MCP servers can do with sheer mass: it costs them their call or their place, and the service next to nothing."""

from collections.abc import Iterator

import pytest

from tests.mcp.service_process import Fleet, fleet, hostile

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("memory")]  # they measure what a service holds

SERVERS = {
    "good": hostile("calls"),
    "calls": hostile("calls"),
    "line": hostile("calls"),
    "thousands": hostile("lists", "thousands"),
    "endless": hostile("lists", "endless"),
}
MB_MOST = 150.0
"""For the moment in which the longest message there may be is read, twice."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Fleet]:
    with fleet(SERVERS) as found:
        for name in SERVERS:
            found.wait_for(name, "connected")
        yield found


def test_a_line_of_a_hundred_megabytes_is_left_out(servers: Fleet) -> None:
    with servers.growth() as growth:
        call = servers.call("calls/long_line", {"mb": 100}, timeout=60)

    assert call["result"]["output"] == "that was all"
    assert growth() < MB_MOST
    assert "dropped" in servers.client.get("/v1/mcp/servers/calls/log").text
    assert servers.works("good")


def test_a_line_without_an_end_costs_the_call_that_waits_for_it(servers: Fleet) -> None:
    with servers.growth() as growth:
        stuck = servers.begin("line/endless_line", timeout=2)
        assert servers.works("good")
        assert servers.ended(stuck["id"])["error"]["code"] == "Timeout"

    assert growth() < MB_MOST
    servers.client.post("/v1/mcp/servers/line/reconnect")
    assert servers.works("line")


def test_of_a_hundred_megabytes_on_stderr_the_last_are_kept(servers: Fleet) -> None:
    with servers.growth() as growth:
        call = servers.call("calls/errors", {"mb": 100}, timeout=60)

    assert call["result"]["output"] == "that was all"
    assert growth() < MB_MOST
    kept = servers.client.get("/v1/mcp/servers/calls/log").text
    assert "said again and again" in kept
    assert len(kept) < 1024 * 1024


def test_a_result_larger_than_any_message_may_be_costs_the_call(servers: Fleet) -> None:
    with servers.growth() as growth:
        call = servers.call("calls/big", {"bytes": 80 * 1024 * 1024}, timeout=60)

    assert call["error"]["code"] == "McpError"
    assert "more than 64 MiB" in call["error"]["message"]
    assert growth() < MB_MOST
    assert servers.works("calls")


def test_a_result_of_fifty_megabytes_comes_through(servers: Fleet) -> None:
    call = servers.call("calls/big", {"bytes": 50 * 1024 * 1024}, timeout=60)

    assert call["status"] == "completed"
    assert call["result"]["metadata"]["original_size"] == 50 * 1024 * 1024
    assert servers.works("good")


def test_thousands_of_questions_and_notices_leave_the_service_as_it_was(servers: Fleet) -> None:
    with servers.growth() as growth:
        for tool, count in (("samples", 5000), ("changes", 50_000), ("progress", 100_000)):
            assert servers.call(f"calls/{tool}", {"count": count}, timeout=60)["status"] == "completed"

    assert growth() < MB_MOST
    assert servers.works("calls")
    assert servers.works("good")


def test_five_thousand_tools_are_too_many_and_the_first_of_them_can_be_used(servers: Fleet) -> None:
    status = servers.server("thousands")

    assert status["tools"] == 2000
    assert [tool["name"] for tool in status["invalid_tools"]] == ["*"]
    assert servers.call("thousands/tool_0000", {"x": 1})["result"]["output"] == "tool_0000 {'x': 1}"


def test_a_list_without_an_end_is_left_after_many_pages(servers: Fleet) -> None:
    status = servers.server("endless")

    assert status["invalid_tools"]
    assert servers.works("endless")
