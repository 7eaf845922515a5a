"""Servers that do everything wrong: each costs only itself, and whoever calls it gets the right error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mcp.hostile import calls, lists
from tests.mcp.service_process import Fleet, fleet, hostile

LETHAL = ("exit", "kill", "half", "closes_output")
"""Tools after which the server is gone."""
ALONE = (*LETHAL, "sleeps")
"""Tools that get a server of their own; all others share one."""
LISTS = ("invalid", "duplicates", "long", "unicode", "colliding", "colliding_reversed", "circling", "shapeless")
SILENT = ("hangs", "deaf", "exits", "refuses", "closes_output", "shapeless", "old_version")
ODD = ("new_version", "odd", "bare")
SOON = {"startup_timeout": 3.0}
SERVERS = {
    "good": hostile("calls"),
    "calls": hostile("calls"),
    "junk": hostile("calls", "junk"),
    **{f"tool_{name}": hostile("calls") for name in ALONE},
    **{f"list_{name}": hostile("lists", name) for name in LISTS},
    **{f"hello_{name}": hostile("handshakes", name, **SOON) for name in (*SILENT, *ODD)},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    with fleet(SERVERS) as found:
        for name in ("good", "calls", *(f"tool_{name}" for name in ALONE)):
            found.wait_for(name, "connected")
        yield found


@pytest.fixture
def servers(shared: Fleet) -> Iterator[Fleet]:
    """After each test the others work as before, and the service does."""
    yield shared
    assert shared.works("good")
    assert shared.client.get("/readyz").status_code == 200


def code_of(call: dict[str, Any]) -> str:
    return str(call["error"]["code"] if call["error"] else call["status"])


def tools_of(servers: Fleet, server: str) -> dict[str, str]:
    """The names of a server's tools by their raw names, which are their titles."""
    listed = servers.client.get("/v1/tools").json()["data"]
    return {tool["title"]: tool["name"] for tool in listed if tool["name"].startswith(f"mcp__{server}__")}


@pytest.mark.parametrize("name", LETHAL)
def test_a_call_whose_server_dies_of_it_is_disconnected_and_the_server_comes_back(servers: Fleet, name: str) -> None:
    call = servers.call(f"tool_{name}/{name}")

    assert code_of(call) == "McpDisconnected"
    assert servers.works(f"tool_{name}")


def test_a_call_that_is_never_answered_costs_only_its_own_time(servers: Fleet) -> None:
    assert code_of(servers.call("calls/never", timeout=0.3)) == "Timeout"
    assert servers.works("calls")


def test_a_server_that_does_nothing_else_meanwhile_lets_only_its_own_callers_wait(servers: Fleet) -> None:
    stuck = servers.begin("tool_sleeps/sleeps", timeout=1)

    assert servers.works("good")
    assert code_of(servers.ended(stuck["id"])) == "Timeout"


def test_an_answer_that_comes_too_late_is_nobodys(servers: Fleet) -> None:
    assert code_of(servers.call("calls/late", {"seconds": 0.4}, timeout=0.2)) == "Timeout"
    assert servers.call("calls/late", {"seconds": 0.4})["result"]["output"] == "better late than never"


def test_only_the_first_of_several_answers_counts(servers: Fleet) -> None:
    assert servers.call("calls/twice")["result"]["output"] == "first"
    assert servers.works("calls")


def test_an_answer_to_nobodys_question_is_no_answer(servers: Fleet) -> None:
    assert code_of(servers.call("calls/wrong_id", timeout=0.3)) == "Timeout"
    assert servers.works("calls")


def test_junk_between_messages_is_passed_over(servers: Fleet) -> None:
    servers.wait_for("junk", "connected")

    assert servers.works("junk")
    assert "not even text" in servers.client.get("/v1/mcp/servers/junk/log").text


def test_a_result_of_five_megabytes_arrives_whole(servers: Fleet) -> None:
    with servers.growth() as growth:
        call = servers.call("calls/big")

    assert call["status"] == "completed"
    assert call["result"]["metadata"]["truncated"] is True
    assert call["result"]["metadata"]["original_size"] == 5 * calls.MB
    last = servers.client.get(f"/v1/calls/{call['id']}/output", params={"offset": 5 * calls.MB - 10}).text
    assert last == "x" * 10
    assert growth() < 100


def test_progress_by_the_thousand_is_told_in_a_bearable_number_of_events(servers: Fleet) -> None:
    call = servers.call("calls/progress", {"count": 20_000})

    assert call["result"]["output"] == "at last"
    assert 1 <= len(servers.events(call["id"], "call.progress")) <= 500


@pytest.mark.parametrize("name", ["odd_progress", "odd_questions"])
def test_messages_of_no_known_shape_are_passed_over(servers: Fleet, name: str) -> None:
    assert servers.call(f"calls/{name}")["status"] == "completed"
    assert servers.works("calls")


def test_an_answer_in_an_array_is_an_answer(servers: Fleet) -> None:
    assert servers.call("calls/batch")["result"]["output"] == "in a batch"


@pytest.mark.parametrize("name", ["nested", "endless_number"])
def test_an_answer_that_cannot_be_read_costs_the_call_alone_and_at_once(servers: Fleet, name: str) -> None:
    call = servers.call(f"calls/{name}")

    assert code_of(call) == "McpError"
    assert "cannot be read" in call["error"]["message"]
    assert servers.works("calls")


def test_numbers_of_no_machine_come_through_as_far_as_json_can_say_them(servers: Fleet) -> None:
    call = servers.call("calls/numbers")

    structured = call["result"]["structured"]
    assert structured["huge"] == int("9" * 400)
    assert json.dumps(structured, allow_nan=False)


@pytest.mark.parametrize("name", ["surrogates", "no_text"])
def test_half_characters_become_whole_ones(servers: Fleet, name: str) -> None:
    call = servers.call(f"calls/{name}")

    assert call["status"] == "completed"
    assert call["result"]["output"].startswith("half ")
    assert call["result"]["output"].endswith(" here")


def test_a_result_of_any_shape_is_an_answer_or_the_servers_error(servers: Fleet) -> None:
    codes = [code_of(servers.call("calls/shapes", {"number": number})) for number in range(14)]

    assert set(codes) <= {"completed", "McpError"}


def test_an_error_of_any_shape_is_the_servers_error(servers: Fleet) -> None:
    assert [code_of(servers.call("calls/odd_error", {"number": number})) for number in range(8)] == ["McpError"] * 8


def test_a_question_without_a_call_goes_to_the_admin_and_holds_nobody_up(servers: Fleet) -> None:
    assert servers.call("calls/elicits")["result"]["output"] == "asked"
    assert servers.works("calls")
    [ask] = servers.until(lambda: servers.client.get("/v1/asks", params={"status": "open"}).json()["data"])
    answer = servers.client.post(f"/v1/asks/{ask['id']}/answer", json={"action": "decline"})

    assert (ask["kind"], answer.status_code) == ("elicitation", 200)


def test_a_thousand_questions_for_a_model_are_refused_where_there_is_none(servers: Fleet) -> None:
    assert servers.call("calls/samples", {"count": 1000})["result"]["output"] == "asked"
    assert servers.works("calls")


def test_a_list_that_changes_thousands_of_times_is_read_a_few_times(servers: Fleet) -> None:
    before = int(servers.call("calls/counts")["result"]["output"])
    assert servers.call("calls/changes", {"count": 20_000})["status"] == "completed"

    assert servers.works("calls")
    assert int(servers.call("calls/counts")["result"]["output"]) - before < 50


def test_invalid_tools_cost_only_themselves(servers: Fleet) -> None:
    status = servers.wait_for("list_invalid", "connected")
    refused = {tool["name"] for tool in status["invalid_tools"]}
    offered = tools_of(servers, "list_invalid")

    assert {"echo", "first", "empty", "last"} <= set(offered)
    assert {"text_schema", "list_schema", "array_type"} <= refused
    assert not refused & set(offered)
    assert {*refused, *offered} >= set(lists.INVALID)
    assert all(tool["reason"] for tool in status["invalid_tools"])
    for name in ("first", "empty", "last"):
        assert servers.call(f"list_invalid/{name}")["result"]["output"] == f"{name} {{}}"


def test_of_tools_with_the_same_name_one_is_offered_and_the_others_are_told(servers: Fleet) -> None:
    status = servers.wait_for("list_duplicates", "connected")

    assert set(tools_of(servers, "list_duplicates")) == {"echo", "same", "other"}
    assert [tool["name"] for tool in status["invalid_tools"]] == ["same", "same"]


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("list_long", (f"{lists.LONG}a", f"{lists.LONG}b", "a" * 200)),
        ("list_unicode", lists.UNICODE),
        ("list_colliding", lists.COLLIDING),
    ],
)
def test_no_name_is_lost_and_every_one_is_legal(servers: Fleet, server: str, names: tuple[str, ...]) -> None:
    servers.wait_for(server, "connected")
    offered = tools_of(servers, server)

    assert set(offered) == {"echo", *names}
    assert len(set(offered.values())) == len(offered)
    for raw, name in offered.items():
        assert name.isascii()
        assert name.replace("_", "").isalnum()
        assert len(name) <= 64
        if raw != "echo":
            assert servers.call(name, {"x": 1})["result"]["output"] == f"{raw} {{'x': 1}}"


def test_names_do_not_depend_on_the_order_of_the_list(servers: Fleet) -> None:
    for server in ("list_colliding", "list_colliding_reversed"):
        servers.wait_for(server, "connected")
    one, other = tools_of(servers, "list_colliding"), tools_of(servers, "list_colliding_reversed")

    suffixes = [{raw: name[-12:] for raw, name in names.items()} for names in (one, other)]
    assert set(suffixes[0]) == set(suffixes[1])


def test_a_list_that_leads_in_circles_is_left(servers: Fleet) -> None:
    assert servers.wait_for("list_circling", "connected")["invalid_tools"]
    assert servers.works("list_circling")


def test_a_list_that_is_none_leaves_a_server_without_tools(servers: Fleet) -> None:
    servers.wait_for("list_shapeless", "connected", "failed")

    assert tools_of(servers, "list_shapeless") == {}


@pytest.mark.parametrize("name", SILENT)
def test_a_server_that_does_not_say_hello_has_failed_and_says_why(servers: Fleet, name: str) -> None:
    status = servers.wait_for(f"hello_{name}", "failed")

    assert status["error"]
    assert status["next_retry_at"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_hello_either_works_or_has_failed(servers: Fleet, name: str) -> None:
    status = servers.wait_for(f"hello_{name}", "connected", "failed")

    assert servers.works(f"hello_{name}") if status["state"] == "connected" else status["error"]


def test_the_last_words_of_a_server_that_ended_can_be_read(servers: Fleet) -> None:
    servers.wait_for("hello_exits", "failed")

    assert "no licence found" in servers.client.get("/v1/mcp/servers/hello_exits/log").text
