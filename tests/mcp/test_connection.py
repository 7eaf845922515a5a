"""Links: hello in both eras, and nothing left behind whatever happens on the way."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.core.mcp_servers import HttpServer, StdioServer
from app.core.sandbox import Command, NetworkDecision
from app.core.sessions import Session
from app.mcp.client.interfaces import CannotConnect, ConnectionLost
from tests.mcp.connections import HANG, Bench, call, program, raw, site
from tests.mcp.raw_http_server import Exchange, as_error, as_json, raw_site
from tests.mcp.sdk_server import SdkServer, hosted
from tests.sandbox.spawned import resident_of, zombies_below
from tests.support.http_servers import reply
from tests.support.scale import rounds
from tests.support.services import until

DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}

SDK = [sys.executable, "-m", "tests.mcp.sdk_server"]


async def test_a_server_of_the_newer_era_says_hello_without_a_handshake(bench: Bench) -> None:
    async with bench.open(raw("modern")) as link:
        meta = (await call(link, "show_meta"))["meta"]
        seen = (await call(link, "show_seen"))["seen"]

    assert link.server_info.version == "2026-07-28"
    assert link.server_info.is_modern
    assert (link.server_info.info, link.server_info.instructions) == ({"name": "raw", "version": "1"}, "be kind")
    assert link.server_info.has("tools", "listChanged")
    assert "initialize" not in seen
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "toolcrib"
    assert meta["io.modelcontextprotocol/logLevel"] == "info"


async def test_a_server_of_the_older_era_says_hello_with_one(bench: Bench) -> None:
    async with bench.open(raw("older")) as link:
        assert await call(link, "show_meta") == {"meta": {}}
        seen = (await call(link, "show_seen"))["seen"]

    assert link.server_info.version == "2025-11-25"
    assert not link.server_info.is_modern
    assert seen[:3] == ["server/discover", "initialize", "notifications/initialized"]


@pytest.mark.parametrize(
    ("era", "version", "first"),
    [("older", "2025-11-25", "initialize"), ("newer", "2026-07-28", "server/discover")],
)
async def test_a_server_of_both_eras_is_spoken_to_as_is_wished(
    bench: Bench, era: str, version: str, first: str
) -> None:
    async with bench.open(raw("modern", era=era)) as link:
        seen = (await call(link, "show_seen"))["seen"]

    assert (link.server_info.version, seen[0]) == (version, first)
    assert {"initialize", "server/discover"} & {*seen} == {first}


@pytest.mark.parametrize(
    ("mode", "era", "seconds", "is_final"),
    [("late", "older", 30, True), ("older", "newer", 30, True), ("silent", "newer", 1.5, False)],
)
async def test_a_server_that_is_not_of_the_wished_era_is_not_spoken_to(
    bench: Bench, mode: str, era: str, seconds: float, is_final: bool
) -> None:
    with pytest.raises(CannotConnect, match=f"does not speak the {era} protocol") as caught:
        async with bench.open(raw(mode, era=era, startup_timeout=seconds)):
            pass
    assert caught.value.is_final is is_final


async def test_a_server_that_does_not_survive_the_first_question_is_started_anew(bench: Bench) -> None:
    for _ in range(2):
        async with bench.open(raw("fragile")) as link:
            seen = (await call(link, "show_seen"))["seen"]
        assert seen[0] == "initialize"

    assert bench.journal.text == "expected initialize\n"  # it was asked that only once


async def test_a_server_that_does_not_answer_the_first_question_is_not_asked_it_again(bench: Bench) -> None:
    first: list[str] = []
    for _ in range(2):
        async with bench.open(raw("silent", startup_timeout=1.5)) as link:
            first.append((await call(link, "show_seen"))["seen"][0])

    assert first == ["server/discover", "initialize"]


async def test_a_server_of_the_newer_era_that_is_slow_to_say_so_is_still_of_it(bench: Bench) -> None:
    async with bench.open(raw("late", startup_timeout=1.5)) as link:
        seen = (await call(link, "show_seen"))["seen"]

    assert link.server_info.is_modern
    assert seen[:3] == ["server/discover", "initialize", "server/discover"]


async def test_a_server_that_says_nothing_is_given_up(bench: Bench) -> None:
    with pytest.raises(CannotConnect, match=r"initialize timed out after 0\.5 s\.") as caught:
        async with bench.open(raw("mute", startup_timeout=0.5)):
            pass
    assert not caught.value.is_final


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_a_version_that_we_do_not_speak_is_told(bench: Bench, era: str) -> None:
    hello = reply(
        b'{"jsonrpc":"2.0","id":2,"result":{"protocolVersion":"1999-01-01","capabilities":{}}}',
        "200 OK",
        "Content-Type: application/json",
    )
    answers = {"initialize": hello}
    if era == "newer":
        answers["server/discover"] = as_error("400 Bad Request", -32022, "no", supported=["1999-01-01"])
    async with raw_site(answers=answers) as raw_one:
        with pytest.raises(CannotConnect, match="supports only version 1999-01-01 of the protocol") as caught:
            async with bench.open(site(raw_one.url)):
                pass
    assert caught.value.is_final


@pytest.mark.parametrize(
    "answer",
    [
        as_error("404 Not Found", -32601, "Method not found"),
        as_error("400 Bad Request", -32022, "no", supported=["2025-06-18"]),
        reply(b"", "500 Internal Server Error"),
        reply(b"<h1>hello</h1>", "200 OK", "Content-Type: text/html"),
        reply(b'{"jsonrpc":"2.0","id":1,"result":{}}', "200 OK", "Content-Type: application/json"),
        reply(
            b'{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25"]}}',
            "200 OK",
            "Content-Type: application/json",
        ),
        reply(b'{"jsonrpc":"2.0","id":1,"result":7}', "200 OK", "Content-Type: application/json"),
    ],
)
async def test_whatever_is_no_yes_means_the_older_era(bench: Bench, answer: bytes) -> None:
    async with raw_site(answers={"server/discover": answer}) as raw_one, bench.open(site(raw_one.url)) as link:
        assert link.server_info.version == "2025-11-25"
        assert await call(link, "echo", text="hi") == {"text": "hi"}


@pytest.mark.parametrize("is_lasting", [False, True])
async def test_a_server_that_refuses_the_version_it_wants_is_asked_once_more(bench: Bench, is_lasting: bool) -> None:
    no = as_error("400 Bad Request", -32022, "no", supported=["2026-07-28"])

    def answer(message: dict[str, Any], exchange: Exchange) -> bytes:
        is_first = len(raw_one.sent("server/discover")) == 1
        return no if is_first or is_lasting else as_json(message["id"], **DISCOVERED)

    async with raw_site(answers={"server/discover": answer}) as raw_one, bench.open(site(raw_one.url)) as link:
        assert link.server_info.version == ("2025-11-25" if is_lasting else "2026-07-28")
        assert len(raw_one.sent("server/discover")) == 2


async def test_a_server_that_will_not_say_hello_is_quoted(bench: Bench) -> None:
    answers = {"initialize": as_error("200 OK", -32000, "out of licences", 2)}
    async with raw_site(answers=answers) as raw_one:
        with pytest.raises(CannotConnect, match="initialize failed: out of licences"):
            async with bench.open(site(raw_one.url)):
                pass


async def test_listening_is_taken_up_again_and_tells_what_may_have_been_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.mcp.client.subscriptions.MIN_PAUSE_SECONDS", 0.01)
    async with bench.open(raw("modern")) as link, asyncio.timeout(HANG):
        for end in ("end_listening", "break_listening"):
            bench.visitor.news.clear()
            await call(link, end)
            while not bench.visitor.news:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert bench.visitor.news == [("notifications/tools/list_changed", {}, None)]
        seen = (await call(link, "show_seen"))["seen"]

    assert seen.count("subscriptions/listen") == 3


async def test_resources_are_watched_in_the_newer_era_without_a_gap(bench: Bench) -> None:
    async with bench.open(raw("modern")) as link, asyncio.timeout(HANG):
        await link.request("resources/subscribe", {"uri": "x://1"})
        await link.request("resources/subscribe", {"uri": "x://2"})
        await link.request("resources/subscribe", {"uri": "x://2"})
        await link.request("resources/unsubscribe", {"uri": "x://1"})
        await link.request("resources/unsubscribe", {"uri": "x://2"})
        seen = (await call(link, "show_seen"))["seen"]
        canceled = (await call(link, "show_canceled"))["canceled"]

    told = [params["uri"] for _, params, _ in bench.visitor.news]
    assert told == ["x://1", "x://1", "x://2", "x://2"]  # the server tells each when it is watched
    assert seen.count("subscriptions/listen") == 4
    assert len(canceled) == 3
    firsts = [what for what in seen if what in ("subscriptions/listen", "notifications/cancelled")]
    assert firsts[1:4] == ["subscriptions/listen", "subscriptions/listen", "notifications/cancelled"]


async def test_the_sdks_server_over_pipes_is_of_the_newer_era(bench: Bench) -> None:
    steps: list[float] = []
    root = str(Path(__file__).parent.parent.parent)
    server = program(*SDK, env={"PYTHONPATH": root}, cwd=root)
    async with bench.open(server) as link, asyncio.timeout(HANG):
        params = {"name": "steps", "arguments": {"steps": 5}}
        await link.request("tools/call", params, on_progress=lambda *step: steps.append(step[0]))
        assert (await call(link, "echo", text="hi"))["content"][0]["text"] == "hi"
        await link.request("resources/subscribe", {"uri": "x://1"})

    assert link.server_info.is_modern
    assert steps == [0, 1, 2, 3, 4]


async def test_a_servers_session_is_where_it_starts(bench: Bench, tmp_path: Path) -> None:
    class Here:
        root = str(tmp_path)

    own = Bench(bench.processes, workspaces=lambda session: Here())
    async with own.open(raw(cwd="/usr"), session=Session("alice", "s1")) as link:
        assert (await call(link, "surroundings"))["cwd"] == str(tmp_path)


async def test_a_server_behind_walls_is_started_by_those_who_build_them(bench: Bench) -> None:
    """Here they only take note, and start it without."""
    started: list[Any] = []

    class Walled:
        async def start(
            self, command: Command, session: Session, workspace: Any, tell: Callable[[NetworkDecision], None]
        ) -> Any:
            started.append((command.env, session.principal, session.id, workspace))
            tell(NetworkDecision("example.com", 443, False, "not listed"))
            return await bench.processes.start(command.argv, env=command.env)

    own = Bench(bench.processes, walled=Walled(), workspaces=lambda session: "workspace")
    async with own.open(raw(walls=True, env={"A": "1"})) as link:
        assert await call(link, "echo", text="hi") == {"text": "hi"}

    assert started == [({"A": "1"}, "admin", "default", "workspace")]
    assert own.journal.text == "Network access to example.com:443 was refused: not listed\n"


async def test_who_waits_learns_that_the_link_is_closed(bench: Bench) -> None:
    async with bench.open(raw()) as link:
        task = asyncio.create_task(call(link, "slow"))
        await call(link, "echo")
    with pytest.raises(ConnectionLost, match="The connection was closed"):
        await task
    assert link.lost.result() == "The connection was closed."


async def test_who_is_canceled_while_it_connects_leaves_nothing_behind(bench: Bench) -> None:
    async def connect() -> None:
        async with bench.open(raw("mute")):
            raise AssertionError

    async with bench.open(raw()):
        pass
    before = left_over(bench)
    for turns in (0, 1, 3, 10, 30):
        task = asyncio.create_task(connect())
        for _ in range(turns):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: is_flat(bench, before))


@pytest.mark.sampled
async def test_opening_and_closing_again_and_again_leaves_nothing_behind(bench: Bench) -> None:
    await again_and_again(bench, rounds(2, 100))


async def again_and_again(bench: Bench, times: int) -> None:
    """Every kind of server and every kind of end."""
    async with hosted(SdkServer()) as newer, hosted(SdkServer(), era="older") as older, raw_site() as sick:
        sick.answers["initialize"] = reply(b"", "500 Internal Server Error")
        kinds: list[StdioServer | HttpServer] = [
            raw(),
            raw("modern"),
            raw("fragile"),
            site(newer),
            site(older),
            site(sick.url),
        ]
        kinds += [site("http://127.0.0.1:1/"), program("false"), raw("mute", startup_timeout=0.05)]

        async def once() -> None:
            for server in kinds:
                with suppress(CannotConnect, ConnectionLost):
                    async with bench.open(server) as link:
                        await call(link, "echo", text="hi")
                        if server is kinds[0]:
                            await call(link, "die")

        await once()
        before = left_over(bench)
        for _ in range(times):
            await once()
        async with asyncio.timeout(HANG):
            while not is_flat(bench, before):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def is_flat(bench: Bench, before: tuple[int, int, int]) -> bool:
    return all(now <= then for now, then in zip(left_over(bench), before, strict=True))


def left_over(bench: Bench) -> tuple[int, int, int]:
    """Descriptors, tasks and dead processes."""
    gc.collect()
    spawner = bench.processes._spawner
    dead = zombies_below(resident_of(spawner)) if spawner._process else []
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(dead)
