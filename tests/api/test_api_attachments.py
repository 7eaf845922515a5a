"""Attachments over HTTP: the same bytes, whether the result holds them or the store does."""

import os
from typing import Any

import httpx

from app.core.results import MAX_INLINE_BYTES, Attachment, Result, attach
from tests.dispatch.test_attachments import giving
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

LARGE = os.urandom(3 * MAX_INLINE_BYTES + 7)
PNG = b"\x89PNG\r\n\x1a\n"


async def given(service: RunningService, toys: Toys, *attachments: Attachment) -> str:
    """Where the attachments of a call are that gave these."""
    toys.more.append(giving(Result("out", attachments=attachments)))
    await service.restart()
    call: dict[str, Any] = await service.run("give")
    return f"/v1/calls/{call['id']}/attachments"


async def test_both_kinds_are_fetched_alike(service: RunningService, toys: Toys) -> None:
    place = await given(service, toys, attach(PNG, "image/png", "small.png"), attach(LARGE, "video/mp4", "l.mp4"))
    id = place.split("/")[3]

    small, large = [await service.client.get(f"{place}/{n}") for n in (0, 1)]

    assert (small.content, large.content == LARGE) == (PNG, True)
    assert {name: large.headers[name] for name in sorted(large.headers) if name != "date"} == {
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": 'attachment; filename="l.mp4"',
        "content-length": str(len(LARGE)),
        "content-security-policy": "default-src 'none'; sandbox",
        "content-type": "video/mp4",
        "etag": f'"{id}.1"',
        "x-content-type-options": "nosniff",
    }
    assert small.headers["content-disposition"] == 'inline; filename="small.png"'
    assert small.headers["etag"] == f'"{id}.0"'


async def test_ranges_conditions_and_head_work_across_rows(service: RunningService, toys: Toys) -> None:
    place = await given(service, toys, attach(LARGE, "video/mp4"))
    etag = f'"{place.split("/")[3]}.0"'

    for asked, start, stop in [
        (f"bytes=0-{MAX_INLINE_BYTES}", 0, MAX_INLINE_BYTES + 1),
        (f"bytes={MAX_INLINE_BYTES - 1}-{2 * MAX_INLINE_BYTES}", MAX_INLINE_BYTES - 1, 2 * MAX_INLINE_BYTES + 1),
        ("bytes=-8", len(LARGE) - 8, len(LARGE)),
    ]:
        answer = await service.client.get(f"{place}/0", headers={"Range": asked})
        assert (answer.status_code, answer.content == LARGE[start:stop]) == (206, True)
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(LARGE)}"
    known = await service.client.get(f"{place}/0", headers={"If-None-Match": etag})
    beyond = await service.client.get(f"{place}/0", headers={"Range": f"bytes={len(LARGE)}-"})
    looked = await service.client.head(f"{place}/0")

    assert (known.status_code, known.content, beyond.status_code) == (304, b"", 416)
    assert (looked.status_code, looked.headers["content-length"], looked.content) == (200, str(len(LARGE)), b"")


async def test_what_a_browser_would_run_is_to_be_saved(service: RunningService, toys: Toys) -> None:
    kinds = [
        ("text/html", "text/html", "attachment"),
        ("image/svg+xml", "image/svg+xml", "attachment"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8", "inline"),
        ("image/png\r\nX-Evil: 1", "application/octet-stream", "attachment"),
        ("no type", "application/octet-stream", "attachment"),
        ("téxt/plain", "application/octet-stream", "attachment"),
    ]
    files = [Attachment(mime, "data:,%3Cscript%3E", "../a\r\nb.html") for mime, _, _ in kinds]
    place = await given(service, toys, *files)

    for n, (_, mime, shown) in enumerate(kinds):
        answer = await service.client.get(f"{place}/{n}")

        assert answer.headers["content-type"] == mime
        named = f"{shown}; filename=\"a__b.html\"; filename*=UTF-8''a%0D%0Ab.html"
        assert answer.headers["content-disposition"] == named
        assert (answer.content, "x-evil" in answer.headers) == (b"<script>", False)


async def test_what_is_not_here_is_told(service: RunningService, toys: Toys) -> None:
    place = await given(service, toys, Attachment("text/html", "https://example.org/page"), attach(b"x", "text/plain"))
    running = (await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait_free"})).json()["id"]

    elsewhere = await service.client.get(f"{place}/0")
    missing = [
        await service.client.get(f"{place}/2"),
        await service.client.get(f"/v1/calls/{running}/attachments/0"),
        await service.client.get(f"/v1/calls/call_{0:024x}/attachments/0"),
    ]

    assert (elsewhere.status_code, elsewhere.json()["code"]) == (404, "NotHere")
    assert [(answer.status_code, answer.json()["code"]) for answer in missing] == [(404, "NotFound")] * 3
    assert [(await service.client.get(f"{place}/{n}")).status_code for n in ("-1", "x")] == [422, 422]


async def test_nobody_else_fetches_them(service: RunningService, toys: Toys) -> None:
    place = await given(service, toys, attach(LARGE, "video/mp4"))
    token = (await service.client.post("/v1/keys", json={"principal": "bob"})).json()["token"]

    async with service.client_of(token) as bob, service.client_of(None) as nobody:
        answers = [await bob.get(f"{place}/0"), await bob.head(f"{place}/0"), await nobody.get(f"{place}/0")]

    assert [answer.status_code for answer in answers] == [404, 404, 401]


async def test_one_that_a_tool_passes_on_is_fetched_from_where_it_is(service: RunningService, toys: Toys) -> None:
    place = await given(service, toys, attach(LARGE, "video/mp4", "l.mp4"))
    toys.more[-1] = giving(Result(attachments=(Attachment("video/mp4", f"{place}/0"), Attachment("a/b", f"{place}/9"))))
    await service.restart()
    passed = (await service.run("give"))["id"]

    answers = [await service.client.get(f"/v1/calls/{passed}/attachments/{n}") for n in (0, 1)]

    assert (answers[0].content == LARGE, answers[0].headers["content-type"]) == (True, "video/mp4")
    assert answers[1].status_code == 404


async def test_one_that_points_at_itself_is_not_here(
    client: httpx.AsyncClient, service: RunningService, toys: Toys
) -> None:
    place = await given(service, toys, attach(b"x", "text/plain"))
    service.change("UPDATE calls SET result = replace(result, 'data:text/plain;base64,eA==', ?)", f"{place}/0")

    answer = await service.client.get(f"{place}/0")

    assert (answer.status_code, answer.json()["code"]) == (404, "NotHere")
