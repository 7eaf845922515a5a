"""Attachments: small ones stay in the result, large ones are kept beside it with the call's end, and go with it."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from app.core.redaction import Redactor
from app.core.results import MAX_ATTACHED_BYTES, MAX_INLINE_BYTES, Attachment, Result, attach, data_of
from app.core.tools import Context, Effect, Lane, Tool, typed
from app.dispatch import attachments as apart
from app.dispatch import retention as sweeping
from app.dispatch.attachments import StoredAttachment, separate
from app.dispatch.redaction import CallRedactor
from app.dispatch.retention import Limits, Retention
from app.store import outputs
from tests.support.services import Crib, RunningService
from tests.support.toy_tools import Toys

PLACE = "/v1/calls/call_1/attachments"
SECRET = "correct horse battery staple"
LARGE = os.urandom(MAX_INLINE_BYTES + 1)


class NoSealer:
    """Nothing is sealed here."""

    def seal(self, data: bytes, about: str) -> bytes:
        raise AssertionError("nothing is sealed here")

    def open(self, sealed: bytes, about: str) -> bytes:
        raise AssertionError("nothing is sealed here")


@pytest.fixture
def cover() -> CallRedactor:
    return CallRedactor(Redactor([SECRET]), NoSealer())


class Nothing(BaseModel, extra="forbid"):
    pass


def giving(result: Result) -> Tool:
    """A tool that gives this."""

    async def run(args: Nothing, ctx: Context) -> Result:
        return result

    return typed(
        Nothing,
        name="give",
        description="A toy.",
        effect=Effect.READ,
        needs=lambda args, scope: [],
        run=run,
        lane=Lane.NONE,
    )


def stored(crib: Crib, call: str) -> dict[int, bytes]:
    rows = crib.rows("SELECT number, data FROM attachments WHERE call = ? ORDER BY number, start", call)
    found: dict[int, bytes] = {}
    for row in rows:
        found[row["number"]] = found.get(row["number"], b"") + row["data"]
    return found


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:,x", b"x"),
        ("data:text/plain,a%20b%ff", b"a b\xff"),
        ("data:image/png;base64,iVBORw0KGgo=", b"\x89PNG\r\n\x1a\n"),
        ("DATA:image/png;BASE64,iVBORw0KGgo%3D", b"\x89PNG\r\n\x1a\n"),
        ("data:;base64,", b""),
        ("data:image/png;base64,A", None),
        ("data:image/png;base64", None),
        ("https://example.org/,x", None),
        ("/v1/calls/call_1/attachments/0", None),
    ],
)
def test_a_data_url_gives_its_bytes_and_others_none(url: str, data: bytes | None) -> None:
    assert data_of(url) == data


def test_what_is_small_stays_as_it_is(cover: CallRedactor) -> None:
    files = (
        attach(bytes(MAX_INLINE_BYTES), "application/zip", "a.zip"),
        Attachment("text/plain", "data:,x"),
        Attachment("text/html", "https://example.org/page"),
        Attachment("image/png", "data:image/png;base64,A"),
    )
    result = Result("out", "title", {"own": 1}, files, {"s": 1})

    assert separate(result, PLACE, cover) == (result, [])


def test_what_is_large_is_named_by_its_place_and_kept_beside(cover: CallRedactor) -> None:
    small = Attachment("text/plain", "data:,x")
    large = attach(LARGE, "image/png", "a.png")
    result = Result("out", "title", {"own": 1}, (small, large, small, large))

    kept, beside = separate(result, PLACE, cover)

    named = [Attachment("image/png", f"{PLACE}/{number}", "a.png") for number in (1, 3)]
    assert kept == replace(result, attachments=(small, named[0], small, named[1]))
    assert beside == [StoredAttachment(1, LARGE), StoredAttachment(3, LARGE)]


def test_what_a_call_cannot_keep_is_told(cover: CallRedactor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MAX_ATTACHED_BYTES", 2 * len(LARGE))
    large, small = attach(LARGE, "image/png", "a.png"), attach(b"xyz", "text/plain")
    unreadable = Attachment("image/png", "data:image/png;base64," + "A" * (MAX_INLINE_BYTES // 4 * 4 + 1))

    kept, beside = separate(Result(attachments=(large, unreadable, small, large, small)), PLACE, cover)

    assert kept.attachments == (Attachment("image/png", f"{PLACE}/0", "a.png"), small, small)
    assert beside == [StoredAttachment(0, LARGE)]
    assert kept.metadata == {
        "attachments_dropped": [
            {"mime": "image/png", "filename": None, "size": None, "reason": "its data URL cannot be read"},
            {
                "mime": "image/png",
                "filename": "a.png",
                "size": len(LARGE),
                "reason": f"a call stores at most {MAX_ATTACHED_BYTES:,} bytes of attachments",
            },
        ]
    }


@pytest.mark.parametrize("around", [b"", bytes(range(256)), "é".encode()])
@pytest.mark.parametrize("size", [0, MAX_INLINE_BYTES, 1024 * 1024 - 10])
def test_a_secret_in_an_attachment_is_not_kept_and_the_rest_of_it_is(
    cover: CallRedactor, around: bytes, size: int
) -> None:
    data = bytes(size) + around + SECRET.encode() + around

    kept, beside = separate(Result(attachments=(attach(data, "application/zip"),)), PLACE, cover)

    [one] = beside or [StoredAttachment(0, data_of(kept.attachments[0].url) or b"")]
    assert one.data == bytes(size) + around + b"[redacted]" + around


async def test_the_end_of_a_call_and_what_is_beside_it_are_one_commit(crib: Crib, toys: Toys) -> None:
    toys.more.append(giving(Result("out", attachments=(attach(LARGE, "image/png", "a.png"),))))
    await crib.open()

    view = await crib.run("give")

    url = f"/v1/calls/{view['id']}/attachments/0"
    assert view["result"]["attachments"] == [{"mime": "image/png", "url": url, "filename": "a.png", "type": "file"}]
    assert json.loads(crib.row(view["id"])["result"]) == view["result"]
    assert stored(crib, view["id"]) == {0: LARGE}
    sizes = crib.rows("SELECT length(data) AS size FROM attachments ORDER BY start")
    assert [row["size"] for row in sizes] == [outputs.ATTACHMENT_ROW_BYTES, 1]


async def test_a_result_that_cannot_be_written_leaves_nothing_beside_it(crib: Crib, toys: Toys) -> None:
    toys.more.append(giving(Result(attachments=(attach(LARGE, "image/png"),), structured=object())))
    await crib.open()

    view = await crib.run("give")

    assert (view["error"]["code"], view["result"], stored(crib, view["id"])) == ("Internal", None, {})


async def test_what_a_failed_call_and_a_client_attach_goes_the_same_way(service: RunningService) -> None:
    await service.client.post("/v1/tools", json={"kind": "client", "name": "sky", "description": "A toy."})
    call = (await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "sky"})).json()
    file = {"mime": "image/png", "url": attach(LARGE, "image/png").url}

    body = {"attachments": [file], "error": {"message": "It is cloudy."}}
    ended = (await service.client.post(f"/v1/calls/{call['id']}/result", json=body)).json()

    assert (ended["status"], ended["error"]["message"]) == ("error", "It is cloudy.")
    assert ended["result"]["attachments"][0]["url"] == f"/v1/calls/{call['id']}/attachments/0"
    assert stored(service, call["id"]) == {0: LARGE}


async def test_the_url_has_the_prefix_that_a_proxy_takes_away(service: RunningService, toys: Toys) -> None:
    toys.more.append(giving(Result(attachments=(attach(LARGE, "image/png"),))))
    service.settings["root_path"] = "/crib"
    await service.restart()

    view = await service.run("give")

    url = view["result"]["attachments"][0]["url"]
    assert url == f"/crib/v1/calls/{view['id']}/attachments/0"
    assert (await service.client.get(url)).content == LARGE


async def test_the_event_of_the_end_has_the_url_and_not_the_bytes(service: RunningService, toys: Toys) -> None:
    toys.more.append(giving(Result(attachments=(attach(LARGE, "image/png"),))))
    await service.restart()

    view = await service.run("give")
    page = (await service.client.get(f"/v1/calls/{view['id']}/events", headers={"Accept": "application/json"})).json()

    [event] = [event for event in page["data"] if event["type"] == "call.completed"]
    assert event["data"]["result"]["attachments"] == view["result"]["attachments"]


async def test_retention_takes_them_with_their_call(crib: Crib, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "PAUSE", 0)
    toys.more.append(giving(Result(attachments=(attach(LARGE, "image/png"),))))
    await crib.open()
    old, young = [(await crib.run("give"))["id"] for _ in range(2)]
    crib.change("UPDATE calls SET ended_at = ended_at - ? WHERE id = ?", 2 * sweeping.DAY * 1_000_000, old)
    services = crib.services

    await Retention(services.engine, services.writer, services.hub, services.clock, Limits(1, None)).sweep()

    assert (stored(crib, old), stored(crib, young)) == ({}, {0: LARGE})


async def test_a_batch_of_removals_counts_their_bytes(crib: Crib, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "PAUSE", 0)
    monkeypatch.setattr(sweeping, "BATCH_BYTES", len(LARGE))
    toys.more.append(giving(Result(attachments=(attach(LARGE, "image/png"),))))
    await crib.open()
    for _ in range(3):
        await crib.run("give")
    crib.change("UPDATE calls SET ended_at = ended_at - ?", 2 * sweeping.DAY * 1_000_000)
    removed: list[int] = []
    services = crib.services
    keeper = Retention(services.engine, services.writer, services.hub, services.clock, Limits(1, None))
    monkeypatch.setattr(keeper, "_remove", _noting(removed, keeper._remove))

    await keeper.sweep()

    assert removed == [1, 1, 1]


def _noting(noted: list[int], remove: Any) -> Any:
    async def note(ids: list[str]) -> None:
        noted.append(len(ids))
        await remove(ids)

    return note


def test_only_what_is_quickly_done_is_done_on_the_loop() -> None:
    small, large = attach(bytes(1000), "image/png"), attach(LARGE, "image/png")

    assert [apart.is_large(Result(attachments=(one,))) for one in (small, large)] == [False, True]
