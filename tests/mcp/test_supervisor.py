"""One task owns each connection: it is made again when lost, and callers wait for what is on its way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import ServerState
from app.core.util.clocks import SystemClock
from app.mcp.client.interfaces import CannotConnect, Connection, ConnectionLost, JsonRpcError, NeedsAuth
from app.mcp.client.supervisor import Backoff, ConnectionSupervisor, Status
from tests.support.fake_mcp_connections import FakeServers, Nobody, at_once, listing, never, stdio
from tests.support.services import HANG, until

STARTING, CONNECTED, FAILED = ServerState.STARTING, ServerState.CONNECTED, ServerState.FAILED
LISTS = {"tools/list": listing("echo")}


class Clock(SystemClock):
    """Seconds pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Log:
    def write(self, text: str) -> None: ...


class Watched:
    """An owner, with all that it read and all the states it had."""

    def __init__(self, servers: FakeServers, backoff: Backoff, **more: Any) -> None:
        self.servers = servers
        self.clock = Clock()
        self.reads: list[Any] = []
        self.states: list[Status] = []
        self.trouble: Exception | None = None
        open = lambda: servers(stdio(), Nobody(), owner=None, session=None, log=Log())  # noqa: E731
        given: dict[str, Any] = {
            "clock": self.clock,
            "backoff": backoff,
            "wait_seconds": HANG,
            "on_status": self.turned,
        } | more
        self.owner = ConnectionSupervisor("toy", open, self.read, **given)

    async def read(self, link: Connection) -> None:
        found = await link.request("tools/list")
        if self.trouble is not None:
            raise self.trouble
        self.reads.append(found)

    def turned(self) -> None:
        self.states.append(self.owner.status)

    @property
    def said(self) -> list[tuple[ServerState, str | None]]:
        return [(status.state, status.error) for status in self.states]

    @property
    def state(self) -> ServerState:
        return self.owner.status.state

    async def get_connection(self) -> Connection:
        async with asyncio.timeout(HANG):
            return await self.owner.get_connection()


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(servers: FakeServers, backoff: Backoff | None = None, **more: Any) -> Watched:
        made.append(Watched(servers, backoff or at_once(), **more))
        made[-1].owner.start()
        return made[-1]

    yield start
    for one in made:
        one.servers.may_leave.set()
        async with asyncio.timeout(HANG):
            await one.owner.stop()
        assert one.servers.open == 0


Watch = Callable[..., Watched]


async def test_a_caller_waits_for_a_connection_that_is_on_its_way(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    servers.may_enter.clear()
    watched = watch(servers)
    waiting = asyncio.create_task(watched.get_connection())
    await until(lambda: servers.opened)
    assert not waiting.done()

    servers.may_enter.set()

    assert await waiting is servers.link
    assert watched.said == [(STARTING, None), (CONNECTED, None)]
    assert watched.reads == [listing("echo")]


async def test_a_caller_does_not_wait_longer_than_a_start_may_take(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    servers.may_enter.clear()
    watched = watch(servers, wait_seconds=0.01)

    with pytest.raises(ToolUnavailable, match="toy is still starting"):
        await watched.get_connection()


async def test_a_lost_connection_is_made_again_and_who_comes_meanwhile_gets_the_new_one(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    first = await watched.get_connection()

    servers.link.lose("it was killed")
    second = await watched.get_connection()  # nobody noticed yet

    assert (first, second) == (servers.links[0], servers.links[1])
    states = [(STARTING, None), (CONNECTED, None), (STARTING, "it was killed"), (CONNECTED, None)]
    assert list(dict.fromkeys(watched.said)) == list(dict.fromkeys(states))
    assert watched.said[-1] == (CONNECTED, None)
    assert FAILED not in [state for state, _ in watched.said]


async def test_a_server_that_cannot_be_reached_says_so_at_once_and_when_the_next_try_is(watch: Watch) -> None:
    watched = watch(FakeServers(CannotConnect("there is no such program.")), never())
    await until(lambda: watched.state is FAILED)

    with pytest.raises(ToolUnavailable, match=r"no such program\. The next attempt is in \d+\.\d s") as caught:
        await watched.get_connection()

    assert watched.owner.status.next_retry_at is not None
    assert caught.value.details is not None
    assert caught.value.details["state"] == "failed"


async def test_callers_who_wait_for_a_start_that_fails_hear_why(watch: Watch) -> None:
    servers = FakeServers(CannotConnect("it said no hello"))
    servers.may_enter.clear()
    watched = watch(servers, never())
    callers = [asyncio.create_task(watched.get_connection()) for _ in range(3)]
    await until(lambda: servers.opened)

    servers.may_enter.set()
    results = await asyncio.gather(*callers, return_exceptions=True)

    assert all(isinstance(one, ToolUnavailable) and "it said no hello" in one.message for one in results)


async def test_a_failed_connection_is_tried_again_and_again(watch: Watch) -> None:
    servers = FakeServers(CannotConnect("first"), CannotConnect("second"), LISTS)
    watched = watch(servers)

    await until(lambda: watched.state is CONNECTED)

    assert [error for state, error in watched.said if state is FAILED] == ["first", "second"]
    assert len(servers.opened) == 3


async def test_a_caller_has_a_server_that_failed_a_while_ago_tried_once_more(watch: Watch) -> None:
    servers = FakeServers(CannotConnect("down"), CannotConnect("still down"), LISTS)
    watched = watch(servers, never())
    await until(lambda: watched.state is FAILED)
    watched.clock.seconds += 2

    with pytest.raises(ToolUnavailable, match="still down"):
        await watched.get_connection()
    with pytest.raises(ToolUnavailable, match="still down"):
        await watched.get_connection()  # it was just tried
    tried = len(servers.opened)
    watched.clock.seconds += 2

    assert await watched.get_connection() is servers.link
    assert (tried, len(servers.opened)) == (2, 3)


async def test_reconnect_does_not_wait_for_the_next_try(watch: Watch) -> None:
    servers = FakeServers(CannotConnect("down"), LISTS)
    watched = watch(servers, never())
    await until(lambda: watched.state is FAILED)

    watched.owner.reconnect()

    await until(lambda: watched.state is CONNECTED)


async def test_reconnect_gives_up_the_connection_that_is_there(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers, never())
    await watched.get_connection()

    watched.owner.reconnect()
    await until(lambda: len(servers.links) == 2 and watched.state is CONNECTED)

    assert servers.links[0].lost.done()
    assert await watched.get_connection() is servers.links[1]


async def test_one_that_wants_a_sign_in_waits_for_it(watch: Watch) -> None:
    servers = FakeServers(NeedsAuth("it wants a token"), LISTS)
    watched = watch(servers)  # which would try again at once
    await until(lambda: watched.state is ServerState.NEEDS_AUTH)
    with pytest.raises(ToolUnavailable, match=r"it wants a token.*sign in"):
        await watched.get_connection()
    assert len(servers.opened) == 1
    assert watched.owner.status.next_retry_at is None

    watched.owner.reconnect()

    assert await watched.get_connection() is servers.link


async def test_what_would_fail_the_same_way_again_is_tried_after_the_longest_delay(watch: Watch) -> None:
    watched = watch(FakeServers(CannotConnect("no such program", is_final=True)), Backoff(0.0, 3600.0))

    await until(lambda: watched.state is FAILED)

    retry = watched.owner.status.next_retry_at
    assert retry is not None
    assert retry > watched.clock.now() + 3000 * 1_000_000


async def test_a_server_that_dies_again_and_again_is_waited_for_longer_and_longer(watch: Watch) -> None:
    backoff = Backoff(0.0, 0.0)
    servers = FakeServers(LISTS)
    watched = watch(servers, backoff)
    await until(lambda: watched.state is CONNECTED)

    servers.link.lose()  # nobody used it, and it did not hold
    await until(lambda: len(servers.links) == 2 and watched.state is CONNECTED)
    assert not backoff.is_reset
    servers.link.lose()
    await until(lambda: len(servers.links) == 3 and watched.state is CONNECTED)

    assert FAILED in [state for state, _ in watched.said]


@pytest.mark.parametrize("good", ["held", "used"])
async def test_after_a_good_connection_the_next_try_is_soon(watch: Watch, good: str) -> None:
    backoff = Backoff(0.0, 0.0)
    servers = FakeServers(CannotConnect("down"), CannotConnect("down"), LISTS, CannotConnect("gone for good"))
    watched = watch(servers, backoff)
    await until(lambda: watched.state is CONNECTED)
    assert not backoff.is_reset
    if good == "held":
        watched.clock.seconds += 11
    else:
        await watched.get_connection()
    watched.states.clear()

    servers.link.lose()
    await until(lambda: FAILED in [state for state, _ in watched.said])

    assert (STARTING, "it was killed") in watched.said
    assert (FAILED, "it was killed") not in watched.said


def test_delays_double_up_to_the_longest_with_some_chance_in_them() -> None:
    backoff = Backoff(0.2, 30.0)

    delays = [backoff.next() for _ in range(40)]

    for delay, middle in zip(delays, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, *[30.0] * 32], strict=True):
        assert 0.8 * middle <= delay <= 1.2 * middle
    assert len(set(delays)) > 30
    backoff.reset()
    assert backoff.next() <= 0.24


async def test_what_the_server_lists_is_read_again_when_it_says_so_and_not_more_often(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    link = await watched.get_connection()
    servers.link.answers["tools/list"] = listing("echo", "more")
    servers.link.held.clear()

    watched.owner.mark_tools_stale()
    await until(lambda: len(servers.link.asked) == 2)
    for _ in range(100):
        watched.owner.mark_tools_stale()
    servers.link.held.set()
    await until(lambda: len(watched.reads) == 3)

    assert watched.reads == [listing("echo"), *[listing("echo", "more")] * 2]
    assert len(servers.link.asked) == 3
    assert await watched.get_connection() is link


async def test_a_reading_that_fails_costs_nothing_and_is_tried_again(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    link = await watched.get_connection()
    servers.link.answers["tools/list"] = JsonRpcError(-32603, "not now")

    watched.owner.mark_tools_stale()
    await until(lambda: len(servers.link.asked) == 2)
    servers.link.answers["tools/list"] = listing("new")
    await until(lambda: len(watched.reads) == 2)

    assert watched.reads[-1] == listing("new")
    assert await watched.get_connection() is link
    assert watched.said == [(STARTING, None), (CONNECTED, None)]


async def test_a_server_that_does_not_say_what_it_has_has_failed(watch: Watch) -> None:
    watched = watch(FakeServers({"tools/list": JsonRpcError(-32603, "out of order")}), never())

    await until(lambda: watched.state is FAILED)

    assert watched.owner.status.error == "tools/list failed: out of order"


async def test_a_server_that_does_not_let_us_in_any_more_wants_a_sign_in(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    await watched.get_connection()
    servers.link.answers["tools/list"] = NeedsAuth("the token was taken back")

    watched.owner.mark_tools_stale()
    await until(lambda: watched.state is ServerState.NEEDS_AUTH)

    assert (watched.owner.status.error, servers.open) == ("the token was taken back", 0)


async def test_a_list_that_only_others_may_see_wants_a_sign_in(watch: Watch) -> None:
    watched = watch(FakeServers({"tools/list": NeedsAuth("who are you?")}))

    await until(lambda: watched.state is ServerState.NEEDS_AUTH)

    assert watched.owner.status.error == "who are you?"


async def test_a_server_that_dies_while_it_lists_has_failed(watch: Watch) -> None:
    watched = watch(FakeServers({"tools/list": ConnectionLost("it has ended with code 1")}), never())

    await until(lambda: watched.state is FAILED)

    assert watched.owner.status.error == "it has ended with code 1"


async def test_our_own_trouble_with_a_list_does_not_cost_the_connection(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers, Backoff(0.0, 0.0))
    watched.trouble = RuntimeError("the disk is full")

    await until(lambda: watched.state is CONNECTED)
    watched.trouble = None
    await until(lambda: watched.reads)

    assert len(servers.links) == 1
    assert "cannot be registered" in caplog.text


async def test_our_own_bug_is_logged_and_not_told(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watched = watch(FakeServers(KeyError("/srv/secret/place")), never())

    await until(lambda: watched.state is FAILED)

    assert watched.owner.status.error == "the service failed to connect; its log has the details"
    assert "/srv/secret/place" in caplog.text


async def test_a_start_that_hangs_can_be_stopped(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    servers.may_enter.clear()
    watched = watch(servers)
    caller = asyncio.create_task(watched.get_connection())
    await until(lambda: servers.opened)

    async with asyncio.timeout(HANG):
        await watched.owner.stop()

    assert watched.state is ServerState.STOPPED
    with pytest.raises(ToolUnavailable, match="stopped"):
        await caller


async def test_a_list_that_never_comes_can_be_stopped_and_the_connection_is_left(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    await watched.get_connection()
    servers.link.held.clear()
    watched.owner.mark_tools_stale()
    await until(lambda: len(servers.link.asked) == 2)

    async with asyncio.timeout(HANG):
        await watched.owner.stop()

    assert servers.open == 0
    assert watched.state is ServerState.STOPPED


async def test_stopping_waits_for_an_orderly_end_and_does_not_disturb_it(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers, never())
    await watched.get_connection()
    servers.may_leave.clear()
    servers.link.lose()
    await until(lambda: watched.state is STARTING)  # it is on its way out

    stopping = asyncio.create_task(watched.owner.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    assert servers.open == 1
    servers.may_leave.set()
    await stopping

    assert servers.open == 0
    assert watched.state is ServerState.STOPPED


async def test_while_a_lost_connection_is_cleared_away_callers_wait(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers)
    await watched.get_connection()
    servers.may_leave.clear()
    servers.link.lose()
    caller = asyncio.create_task(watched.get_connection())
    await until(lambda: watched.state is STARTING)
    assert not caller.done()

    servers.may_leave.set()

    assert await caller is servers.links[1]


async def test_who_gives_up_waiting_disturbs_nobody(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    servers.may_enter.clear()
    watched = watch(servers)
    impatient, patient = asyncio.create_task(watched.get_connection()), asyncio.create_task(watched.get_connection())
    await until(lambda: servers.opened)

    impatient.cancel()
    await asyncio.wait([impatient])
    servers.may_enter.set()

    assert await patient is servers.link
    assert impatient.cancelled()


async def test_a_scout_has_a_look_and_leaves(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers, is_probe_only=True)
    await until(lambda: watched.state is CONNECTED)

    assert servers.open == 0
    assert watched.reads == [listing("echo")]
    watched.owner.reconnect()
    await until(lambda: len(watched.reads) == 2)


async def test_one_that_reads_late_reads_when_the_server_says_so(watch: Watch) -> None:
    servers = FakeServers(LISTS)
    watched = watch(servers, reads_later=True)
    await watched.get_connection()
    assert watched.reads == []

    watched.owner.mark_tools_stale()

    await until(lambda: watched.reads)
