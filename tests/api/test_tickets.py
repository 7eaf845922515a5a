"""Tickets: what opens an event stream for a browser, once and not for long."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.api.tickets import MAX_PER_KEY, MAX_TICKETS, TICKET_SECONDS, Tickets
from app.core.principals import Key, Scope
from app.core.util.clocks import SystemClock
from tests.support.services import KEY, RunningService, kinds, listening

PAGE = {"Accept": "application/json"}


class MovedClock(SystemClock):
    """The machine's clock, some seconds later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def buy(client: httpx.AsyncClient, **asked: Any) -> str:
    answer = await client.post("/v1/tickets", json=asked)
    assert answer.status_code == 201, answer.text
    ticket: str = answer.json()["ticket"]
    return ticket


async def new_key(
    service: RunningService, principal: str = "ann", scopes: tuple[str, ...] = ("calls:read", "calls:run")
) -> Any:
    return (await service.client.post("/v1/keys", json={"principal": principal, "scopes": list(scopes)})).json()


def assert_refused(answer: httpx.Response, ticket: str) -> None:
    """Exactly what a bad key gets, and not a word about the ticket."""
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Unauthorized",
        "status": 401,
        "detail": "A valid key is required.",
        "code": "Unauthorized",
    }
    assert not ticket or ticket not in answer.text + str(answer.headers)


def key_named(id: str) -> Key:
    return Key(id, "ann", "", frozenset({Scope.CALLS_READ}), "", 0)


async def test_a_ticket_opens_a_stream_without_a_key_and_only_one(service: RunningService) -> None:
    ticket = await buy(service.client)
    async with service.client_of(None) as page:
        async with listening(page, "/v1/events", params={"ticket": ticket}) as stream:
            await service.client.post("/v1/calls", json={"tool": "echo"})
            assert kinds(await stream.until("call.completed")) == ["call.pending", "call.running", "call.completed"]

            assert_refused(await page.get("/v1/events", params={"ticket": ticket}), ticket)
        assert_refused(await page.get("/v1/events", params={"ticket": ticket}), ticket)


async def test_of_many_who_show_a_ticket_at_the_same_moment_one_gets_in(service: RunningService) -> None:
    ticket = await buy(service.client)
    async with service.client_of(None) as page:
        answers = await asyncio.gather(
            *(page.get("/v1/events", params={"ticket": ticket}, headers=PAGE) for _ in range(20))
        )

    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 19


async def test_a_ticket_says_until_when_it_is_good_and_is_kept_by_nobody(service: RunningService) -> None:
    before = datetime.now(UTC)
    answer = await service.client.post("/v1/tickets")

    assert answer.status_code == 201
    assert set(answer.json()) == {"ticket", "expires_at"}
    until = datetime.fromisoformat(answer.json()["expires_at"])
    assert timedelta(0) <= until - before - timedelta(seconds=TICKET_SECONDS) < timedelta(seconds=TICKET_SECONDS)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["ticket"].startswith("tt_")
    assert len(answer.json()["ticket"]) == 3 + 43  # 256 bits
    assert answer.json()["ticket"] not in str(vars(service.app.state.tickets))


@pytest.mark.parametrize(("seconds", "status"), [(TICKET_SECONDS - 5, 200), (TICKET_SECONDS, 401), (86_400, 401)])
async def test_a_ticket_is_good_for_half_a_minute(service: RunningService, seconds: float, status: int) -> None:
    ticket = await buy(service.client)
    service.services.clock = MovedClock(seconds)

    answer = await service.client.get("/v1/events", params={"ticket": ticket}, headers=PAGE)

    assert answer.status_code == status


async def test_a_ticket_for_one_call_opens_the_events_of_that_call_and_nothing_else(service: RunningService) -> None:
    one, other = [(await service.client.post("/v1/calls", json={"tool": "echo"})).json()["id"] for _ in range(2)]
    async with service.client_of(None) as page:
        for path in ("/v1/events", f"/v1/calls/{other}/events", "/v1/calls/call_0/events"):
            ticket = await buy(service.client, call=one)
            assert_refused(await page.get(path, params={"ticket": ticket}, headers=PAGE), ticket)
            used_up = await page.get(f"/v1/calls/{one}/events", params={"ticket": ticket}, headers=PAGE)
            assert_refused(used_up, ticket)
        ticket = await buy(service.client, call=one)
        async with listening(page, f"/v1/calls/{one}/events", params={"ticket": ticket}) as stream:
            seen = await stream.rest()

    assert {frame.data["call"] for frame in seen} == {one}
    assert kinds(seen) == ["call.pending", "call.running", "call.completed"]


async def test_a_ticket_for_everything_opens_the_events_of_a_call_too(service: RunningService) -> None:
    call = (await service.client.post("/v1/calls", json={"tool": "echo"})).json()["id"]
    ticket = await buy(service.client, call=None)
    async with service.client_of(None) as page:
        answer = await page.get(f"/v1/calls/{call}/events", params={"ticket": ticket}, headers=PAGE)

    assert len(answer.json()["data"]) == 3


async def test_a_ticket_shows_what_its_key_may_see(service: RunningService) -> None:
    ann = await new_key(service)
    foreign = (await service.client.post("/v1/calls", json={"tool": "echo"})).json()["id"]
    async with service.client_of(ann["token"]) as hers, service.client_of(None) as page:
        own = (await hers.post("/v1/calls", json={"tool": "echo"})).json()["id"]
        seen = await page.get("/v1/events", params={"ticket": await buy(hers)}, headers=PAGE)
        hidden = await page.get(f"/v1/calls/{foreign}/events", params={"ticket": await buy(hers)}, headers=PAGE)
        not_for_sale = [await hers.post("/v1/tickets", json={"call": id}) for id in (foreign, "call_0")]

    assert {event["call"] for event in seen.json()["data"]} == {own}
    assert (hidden.status_code, hidden.json()["code"]) == (404, "NotFound")
    assert [(answer.status_code, answer.json()["code"]) for answer in not_for_sale] == [(404, "NotFound")] * 2


async def test_a_ticket_is_sold_only_to_a_key_that_may_read(service: RunningService) -> None:
    runner = await new_key(service, scopes=("calls:run",))
    async with service.client_of(runner["token"]) as client, service.client_of(None) as stranger:
        refused = await client.post("/v1/tickets")
        unknown = await stranger.post("/v1/tickets")

    assert (refused.status_code, refused.json()["code"]) == (403, "Forbidden")
    assert (unknown.status_code, unknown.json()["code"]) == (401, "Unauthorized")
    assert len(service.app.state.tickets) == 0


async def test_tickets_and_their_streams_end_with_the_key_that_bought_them(service: RunningService) -> None:
    ann = await new_key(service)
    async with service.client_of(ann["token"]) as hers, service.client_of(None) as page:
        first, second = await buy(hers), await buy(hers)
        async with listening(page, "/v1/events", params={"ticket": first}) as stream:
            call = (await hers.post("/v1/calls", params={"wait": 0}, json={"tool": "wait"})).json()
            await stream.until("call.running")
            await service.client.delete(f"/v1/keys/{ann['id']}")
            await service.client.post(f"/v1/calls/{call['id']}/cancel")

            assert await stream.rest() == []
        assert_refused(await page.get("/v1/events", params={"ticket": second}), second)


async def test_a_ticket_nobody_sold_is_refused_as_a_bad_key_is(
    service: RunningService, subtests: pytest.Subtests
) -> None:
    for ticket in ["", "tt_", "tt_" + "A" * 43, KEY, "x" * 5000, "%", "ä", "\x00", "tt_\ud800"]:
        with subtests.test(ticket=ticket):
            query = (
                b"ticket=" + httpx.QueryParams({"t": ticket.encode("utf-8", "surrogatepass")}).__str__()[2:].encode()
            )
            async with service.client_of(None) as page:
                for path in ("/v1/events", "/v1/calls/call_0/events"):
                    assert_refused(await page.get(httpx.URL(service.url + path, query=query)), ticket)


async def test_who_shows_a_bad_ticket_is_not_let_in_by_a_key_beside_it(service: RunningService) -> None:
    assert_refused(await service.client.get("/v1/events", params={"ticket": "tt_no"}, headers=PAGE), "tt_no")


async def test_no_other_route_takes_a_ticket(service: RunningService) -> None:
    call = (await service.client.post("/v1/calls", json={"tool": "echo"})).json()["id"]
    ticket = await buy(service.client)
    async with service.client_of(None) as page:
        for method, path in [
            ("GET", "/v1/calls"),
            ("GET", f"/v1/calls/{call}"),
            ("GET", f"/v1/calls/{call}/output"),
            ("POST", f"/v1/calls/{call}/cancel"),
            ("POST", "/v1/calls"),
            ("POST", "/v1/tickets"),
            ("GET", "/v1/tools"),
            ("GET", "/v1/keys"),
            ("POST", "/mcp"),
        ]:
            assert_refused(await page.request(method, path, params={"ticket": ticket}), ticket)
            bearer = {"Authorization": f"Bearer {ticket}"}
            assert_refused(await page.request(method, path, headers=bearer), ticket)

        still_good = await page.get("/v1/events", params={"ticket": ticket}, headers=PAGE)
    assert still_good.status_code == 200


async def test_a_page_that_comes_back_with_another_ticket_misses_nothing(service: RunningService) -> None:
    for _ in range(2):
        await service.client.post("/v1/calls", json={"tool": "echo"})
    async with service.client_of(None) as page:
        params = {"ticket": await buy(service.client), "after": "4"}
        async with listening(page, "/v1/events", params=params) as stream:
            frames = await stream.until("call.completed")

    assert [frame.id for frame in frames] == [5, 6]


async def test_a_ticket_is_found_in_no_log_no_record_and_no_error(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="app")
    tickets = [await buy(service.client) for _ in range(3)]
    async with service.client_of(None) as page:
        bad = await page.get("/v1/events", params={"ticket": tickets[0], "limit": "0"})
        good = await page.get("/v1/events", params={"ticket": tickets[1]}, headers=PAGE)
        lost = await page.get("/v1/nowhere", params={"ticket": tickets[2]})

    assert (bad.status_code, good.status_code, lost.status_code) == (422, 200, 404)
    wal = service.data_dir / "toolcrib.db-wal"
    kept = (service.data_dir / "toolcrib.db").read_bytes() + (wal.read_bytes() if wal.exists() else b"")
    ours = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("http"))
    for ticket in tickets:
        assert ticket not in ours
        assert ticket.encode() not in kept
        assert ticket not in bad.text + good.text + lost.text


async def test_a_ticket_is_asked_for_with_no_body_or_a_fitting_one(
    service: RunningService, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[bytes, int, str | None]] = [
        (b"", 201, None),
        (b"{}", 201, None),
        (b"null", 201, None),
        (b'{"call": null}', 201, None),
        (b"{", 400, "InvalidJson"),
        (b"[]", 422, "InvalidRequest"),
        (b'{"call": 1}', 422, "InvalidRequest"),
        (b'{"call": "%s"}' % (b"x" * 65), 422, "InvalidRequest"),
        (b'{"seconds": 3600}', 422, "InvalidRequest"),
    ]
    for content, status, code in cases:
        with subtests.test(content=content, status=status, code=code):
            before = len(service.app.state.tickets)
            answer = await service.client.post(
                "/v1/tickets", content=content, headers={"Content-Type": "application/json"}
            )

            assert (answer.status_code, answer.json().get("code")) == (status, code)
            assert len(service.app.state.tickets) == before + (status == 201)


def test_a_key_holds_so_many_tickets_and_its_oldest_goes_first() -> None:
    tickets = Tickets()
    others = tickets.issue(key_named("bob"), None, 0)
    sold = [tickets.issue(key_named("ann"), None, 0) for _ in range(MAX_PER_KEY + 2)]

    assert len(tickets) == MAX_PER_KEY + 1
    assert [tickets.take(token, None, 1) for token in sold[:2]] == [None, None]
    assert all(tickets.take(token, None, 1) == key_named("ann") for token in sold[2:])
    assert tickets.take(others, None, 1) == key_named("bob")
    assert len(tickets) == 0


def test_however_many_keys_buy_the_tickets_stay_bounded() -> None:
    tickets = Tickets()
    sold = [tickets.issue(key_named(f"key{number // MAX_PER_KEY}"), None, 0) for number in range(MAX_TICKETS + 10)]

    assert len(tickets) == MAX_TICKETS
    assert tickets.take(sold[9], None, 1) is None
    assert tickets.take(sold[10], None, 1) is not None


def test_tickets_that_ran_out_make_room() -> None:
    tickets = Tickets()
    for _ in range(MAX_PER_KEY):
        tickets.issue(key_named("ann"), None, 0)
    tickets.issue(key_named("bob"), None, TICKET_SECONDS)

    assert len(tickets) == 1
