"""Files over HTTP: any bytes in and out, by calls like all others."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.api.http import ranges
from app.core.ports import Stamp
from app.tools.files import delete_file, get_file, list_files, put_file
from tests.support.raw_http import connected, head
from tests.support.services import HANG, RunningService, until
from tests.support.toy_tools import ToyHook, Toys

FILES = "/v1/sessions/default/files"
ANY_BYTES = bytes(range(256)) * 300
LIMIT = 200_000


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    toys.more += [delete_file.tool, get_file.tool, list_files.tool, put_file.tool]
    service = RunningService(data_dir, toys, file_limit=LIMIT, body_limit=5000)
    await service.open()
    yield service
    await service.close()


@pytest.fixture
def workspace(service: RunningService) -> Path:
    return service.data_dir / "workspace"


def spooled(service: RunningService) -> list[str]:
    return os.listdir(service.data_dir / "uploads")


def etag_of(path: Path) -> str:
    return f'"{Stamp.of(path.stat()).etag}"'


def assert_failed(answer: httpx.Response, status: int, code: str) -> str:
    """The answer is a problem of this kind, and names its call; gives its sentence."""
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["call"] == answer.headers["toolcrib-call"]
    detail: str = body["detail"]
    return detail


def calls_of(service: RunningService, tool: str) -> list[str]:
    """How the calls of a tool stand."""
    return [row["status"] for row in service.rows("SELECT status FROM calls WHERE tool = ? ORDER BY id", tool)]


async def ask_of(client: httpx.AsyncClient) -> dict[str, Any]:
    async with asyncio.timeout(HANG):
        while not (asks := (await client.get("/v1/asks", params={"status": "open"})).json()["data"]):  # noqa: ASYNC110
            await asyncio.sleep(0)
    ask: dict[str, Any] = asks[0]
    return ask


async def test_any_bytes_go_in_and_come_out_again(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    put = await client.put(f"{FILES}/new/deep/a.bin", content=ANY_BYTES)
    got = await client.get(f"{FILES}/new/deep/a.bin")

    assert (workspace / "new/deep/a.bin").read_bytes() == ANY_BYTES == got.content
    etag = etag_of(workspace / "new/deep/a.bin")
    assert (put.status_code, put.headers["location"], put.headers["etag"]) == (201, f"{FILES}/new/deep/a.bin", etag)
    modified = put.json().pop("modified")
    assert put.json() == {
        "path": "new/deep/a.bin",
        "type": "file",
        "size": len(ANY_BYTES),
        "modified": modified,
        "etag": etag.strip('"'),
        "call": put.headers["toolcrib-call"],
    }
    assert got.status_code == 200
    assert {name: got.headers[name] for name in sorted(got.headers) if name not in ("date", "toolcrib-call")} == {
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": 'attachment; filename="a.bin"',
        "content-length": str(len(ANY_BYTES)),
        "content-security-policy": "default-src 'none'; sandbox",
        "content-type": "application/octet-stream",
        "etag": etag,
        "last-modified": got.headers["last-modified"],
        "x-content-type-options": "nosniff",
    }
    assert (
        int((workspace / "new/deep/a.bin").stat().st_mtime)
        == parsedate_to_datetime(got.headers["last-modified"]).timestamp()
    )


async def test_every_request_is_a_call_and_its_answer_names_it(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    put = await client.put(f"{FILES}/a.txt", content=b"one\n")
    over = await client.put(f"{FILES}/a.txt", content=b"two\n")
    got = await client.get(f"{FILES}/a.txt")
    looked = await client.head(f"{FILES}/a.txt")
    listed = await client.get(FILES)
    gone = await client.delete(f"{FILES}/a.txt")

    answers = [put, over, got, looked, listed, gone]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 204]
    calls = [(await client.get(f"/v1/calls/{answer.headers['toolcrib-call']}")).json() for answer in answers]
    tools = ["put_file", "put_file", "get_file", "get_file", "list_files", "delete_file"]
    assert [(call["tool"], call["status"], call["session"]) for call in calls] == [
        (tool, "completed", "default") for tool in tools
    ]
    assert calls[1]["result"]["metadata"]["diff"] == "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n"
    assert [call["result"]["output"] for call in (calls[0], calls[2], calls[5])] == [
        "Created a.txt, 4 bytes.",
        "a.txt: 4 bytes, text/plain; charset=utf-8",
        "Deleted a.txt.",
    ]
    assert spooled(service) == []


async def test_no_list_of_tools_names_what_only_routes_use(service: RunningService, client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/tools")).json()["data"]
    unknown = (await client.post("/v1/calls", json={"tool": "get_fil"})).json()

    names = {tool.tool.name for tool in (delete_file, get_file, list_files, put_file)}
    assert not names & {tool["name"] for tool in listed}
    assert not any(name in unknown["error"]["message"] for name in names)


async def test_the_type_is_told_by_the_content_and_never_one_that_is_run(client: httpx.AsyncClient) -> None:
    for content, mime, shown in [
        (b"plain\n", "text/plain; charset=utf-8", "inline"),
        (b"", "text/plain; charset=utf-8", "inline"),
        (b"<html><script>alert(1)</script>", "text/plain; charset=utf-8", "inline"),
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png", "inline"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", "inline"),
        (b"GIF89a\0", "image/gif", "inline"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp", "inline"),
        (b"%PDF-1.7\n%\xff", "application/pdf", "attachment"),
        (b"PK\x03\x04\0", "application/zip", "attachment"),
        (b"a\0b", "application/octet-stream", "attachment"),
        ("é".encode("latin-1"), "application/octet-stream", "attachment"),
        (b"x" * 8191 + "é".encode(), "text/plain; charset=utf-8", "inline"),
    ]:
        await client.put(f"{FILES}/page.html", content=content)

        answer = await client.get(f"{FILES}/page.html")

        assert answer.headers["content-type"] == mime
        assert answer.headers["content-disposition"] == f'{shown}; filename="page.html"'
        assert answer.content == content


async def test_a_name_is_given_back_as_it_is(client: httpx.AsyncClient, workspace: Path) -> None:
    for name, disposition in {
        'a "b"\\c.txt': "inline; filename=\"a _b__c.txt\"; filename*=UTF-8''a%20%22b%22%5Cc.txt",
        "naïve.txt": "inline; filename=\"na_ve.txt\"; filename*=UTF-8''na%C3%AFve.txt",
        "line\nbreak\r\n": "inline; filename=\"line_break__\"; filename*=UTF-8''line%0Abreak%0D%0A",
        "100% ?#;,&=+": 'inline; filename="100% ?#;,&=+"',
    }.items():
        url = f"{FILES}/{quote(name)}"
        put = await client.put(url, content=name.encode())
        got = await client.get(url)

        assert (put.status_code, put.json()["path"]) == (201, name), url
        assert (workspace / name).read_bytes() == name.encode()
        assert got.text == name
        assert got.headers["content-disposition"] == disposition


async def test_one_range_is_answered_as_a_range(client: httpx.AsyncClient) -> None:
    content = bytes(range(150)) * 2
    await client.put(f"{FILES}/a", content=content)

    for asked, status, start, stop in [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=10-", 206, 10, 300),
        ("bytes=-7", 206, 293, 300),
        ("bytes=-999", 200, 0, 300),
        ("bytes=299-5000", 206, 299, 300),
        ("Bytes = 1 - 1", 206, 1, 2),
        ("bytes=0-1,5-6", 200, 0, 300),
        ("bytes=9-3", 200, 0, 300),
        ("bytes=-", 200, 0, 300),
        ("lines=1-2", 200, 0, 300),
        ("bytes=" + "9" * 40 + "-", 200, 0, 300),
        ("bytes=300-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
    ]:
        answer = await client.get(f"{FILES}/a", headers={"Range": asked})

        assert answer.status_code == status, asked
        if status == 416:
            assert_failed(answer, 416, "RangeNotSatisfiable")
            assert answer.headers["content-range"] == "bytes */300"
        else:
            assert answer.content == content[start:stop]
            part = f"bytes {start}-{stop - 1}/300" if status == 206 else None
            assert answer.headers.get("content-range") == part


async def test_head_tells_all_but_the_bytes_and_knows_no_ranges(client: httpx.AsyncClient) -> None:
    await client.put(f"{FILES}/a", content=b"0123456789")

    got = await client.get(f"{FILES}/a")
    looked = await client.head(f"{FILES}/a", headers={"Range": "bytes=50-"})
    missing = await client.head(f"{FILES}/b")

    assert (looked.status_code, looked.content, missing.status_code) == (200, b"", 404)
    apart = ("date", "toolcrib-call")
    assert [item for item in looked.headers.items() if item[0] not in apart] == [
        item for item in got.headers.items() if item[0] not in apart
    ]


async def test_conditions_of_a_download_are_judged_in_their_order(client: httpx.AsyncClient, workspace: Path) -> None:
    file = workspace / "a"
    file.write_bytes(b"0123456789")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    etag, other = etag_of(file), '"other"'
    date, before = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT"
    part = {"Range": "bytes=0-1"}

    for headers, status in [
        ({"If-None-Match": etag}, 304),
        ({"If-None-Match": f"W/{etag}, {other}"}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": other}, 200),
        ({"If-None-Match": other, "If-Modified-Since": date}, 200),
        ({"If-Modified-Since": date}, 304),
        ({"If-Modified-Since": before}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Match": etag}, 200),
        ({"If-Match": f"{other}, {etag}"}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": other}, 412),
        ({"If-Match": f"W/{etag}"}, 412),
        ({"If-Match": "nonsense"}, 412),
        ({"If-Match": other, "If-None-Match": etag}, 412),
        ({"If-Unmodified-Since": date}, 200),
        ({"If-Unmodified-Since": before}, 412),
        (part | {"If-Range": etag}, 206),
        (part | {"If-Range": other}, 200),
        (part | {"If-Range": f"W/{etag}"}, 200),
        (part | {"If-Range": date}, 206),
        (part | {"If-Range": before}, 200),
        (part | {"If-Range": "nonsense"}, 200),
        (part | {"If-None-Match": etag}, 304),
    ]:
        answer = await client.get(f"{FILES}/a", headers=headers)

        assert answer.status_code == status, headers
        assert answer.content == {200: b"0123456789", 206: b"01", 304: b""}.get(status, answer.content)
        if status == 412:
            assert_failed(answer, 412, "PreconditionFailed")
        else:
            assert (answer.headers["etag"], answer.headers["last-modified"]) == (etag, date)


async def test_a_file_is_written_only_in_the_state_that_is_expected(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    file = workspace / "a"

    async def put(content: bytes, **conditions: str) -> int:
        headers = {name.replace("_", "-"): value for name, value in conditions.items()}
        answer = await client.put(f"{FILES}/a", content=content, headers=headers)
        if answer.status_code == 412:
            assert_failed(answer, 412, "ESTALE" if "If_Match" in conditions else "EEXIST")
        return answer.status_code

    assert await put(b"0", If_Match="*") == 412
    assert not file.exists()
    assert await put(b"1", If_None_Match="*") == 201
    first = etag_of(file)
    assert await put(b"2", If_None_Match="*") == 412
    assert await put(b"3", If_None_Match=first) == 412
    assert await put(b"4", If_Match='"other"') == 412
    assert await put(b"5", If_Match=f"W/{first}") == 412
    assert file.read_bytes() == b"1"
    assert await put(b"6", If_Match=f'"other", {first}') == 200
    assert await put(b"7", If_Match=first) == 412
    assert file.read_bytes() == b"6"

    gone = [await client.delete(f"{FILES}/a", headers={"If-Match": etag}) for etag in (first, etag_of(file), "*")]

    assert [answer.status_code for answer in gone] == [412, 204, 412]
    assert (file.exists(), spooled(service)) == (False, [])


async def test_of_two_who_write_over_the_same_state_one_wins(client: httpx.AsyncClient, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"old")
    headers = {"If-Match": etag_of(workspace / "a")}

    answers = await asyncio.gather(
        *(client.put(f"{FILES}/a", content=b"new %d" % number, headers=headers) for number in range(8))
    )

    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    [winner] = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    assert (workspace / "a").read_bytes() == b"new %d" % winner


async def test_what_goes_wrong_has_its_status_and_nothing_is_touched(service: RunningService, workspace: Path) -> None:
    """On a bare socket: a client library would mend the paths."""
    (workspace / "folder/.git").mkdir(parents=True)
    (workspace / "folder/.git/config").write_text("x")
    (workspace / "out").symlink_to(service.data_dir)
    os.mkfifo(workspace / "pipe")
    before = sorted(str(file) for file in service.data_dir.rglob("*"))

    for method, path, status, code in [
        ("GET", "missing", 404, "ENOENT"),
        ("GET", "missing/deep", 404, "ENOENT"),
        ("DELETE", "missing", 404, "ENOENT"),
        ("GET", "folder", 409, "EISDIR"),
        ("GET", ".", 409, "EISDIR"),
        ("PUT", "folder", 409, "EISDIR"),
        ("PUT", "new/", 409, "EISDIR"),
        ("DELETE", "folder", 409, "EISDIR"),
        ("GET", "hello.txt/x", 409, "ENOTDIR"),
        ("PUT", "hello.txt/x", 409, "ENOTDIR"),
        ("GET", "", 422, "InvalidArgs"),
        ("PUT", "", 422, "InvalidArgs"),
        ("GET", "%00", 422, "InvalidArgs"),
        ("PUT", "a" * 300, 422, "ENAMETOOLONG"),
        ("GET", "a/" * 3000, 422, "ENAMETOOLONG"),
        ("GET", "pipe", 422, "EINVAL"),
        ("PUT", "pipe", 422, "EINVAL"),
        ("GET", "/etc/passwd", 403, "OutsideWorkspace"),
        ("GET", "../toolcrib.db", 403, "OutsideWorkspace"),
        ("PUT", "../x", 403, "OutsideWorkspace"),
        ("PUT", "..", 403, "OutsideWorkspace"),
        ("DELETE", "folder/../../toolcrib.db", 403, "OutsideWorkspace"),
        ("GET", "%2e%2e/toolcrib.db", 403, "OutsideWorkspace"),
        ("GET", "..%2ftoolcrib.db", 403, "OutsideWorkspace"),
        ("GET", "out/toolcrib.db", 403, "OutsideWorkspace"),
        ("PUT", "out/x", 403, "OutsideWorkspace"),
        ("DELETE", "out/toolcrib.db", 403, "OutsideWorkspace"),
        ("PUT", ".git/hooks/pre-commit", 403, "PermissionDenied"),
        ("DELETE", "folder/.git/config", 403, "PermissionDenied"),
    ]:
        async with connected(service.port) as line:
            await line.send(head(f"{method} {FILES}/{path}", "Content-Length: 1") + b"x")
            answer = await line.answer()

        body = json.loads(answer.content)
        assert (answer.status, body["code"]) == (status, code), (path, body)
        assert body["call"] == answer.headers["toolcrib-call"]
        assert str(service.data_dir.parent) not in body["detail"].replace(str(workspace), "")
    assert sorted(str(file) for file in service.data_dir.rglob("*")) == before


async def test_a_name_that_is_not_utf_8_is_refused_and_not_mended(service: RunningService, workspace: Path) -> None:
    for method in ("GET", "PUT", "DELETE"):
        async with connected(service.port) as line:
            await line.send(head(f"{method} {FILES}/a%ff", "Content-Length: 1") + b"x")
            answer = await line.answer()
        assert (answer.status, answer.code) == (422, "InvalidRequest")
    assert os.listdir(workspace) == ["hello.txt"]


async def test_a_file_has_its_own_limit_and_nothing_else_has_it(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 50_000):
            yield bytes(min(50_000, size - start))

    for size, status in ((LIMIT, 201), (LIMIT + 1, 413)):
        bodies: list[bytes | AsyncIterator[bytes]] = [bytes(size), chunks(size)]
        for number, content in enumerate(bodies):
            answer = await client.put(f"{FILES}/{size}-{number}", content=content)
            assert answer.status_code == status
    elsewhere = [
        await client.put("/v1/secrets/files", content=bytes(5001)),
        await client.put("/v1/sessions/default/filesx/a", content=bytes(5001)),
        await client.post(f"{FILES}/a", content=bytes(5001)),
    ]

    assert [answer.status_code for answer in elsewhere] == [413] * 3
    assert answer.json()["detail"] == f"A body may have {LIMIT} bytes at most."
    assert (len(calls_of(service, "put_file")), spooled(service)) == (2, [])


async def test_an_upload_that_breaks_off_leaves_nothing(service: RunningService, workspace: Path) -> None:
    for cut in ("Content-Length: 100000", "Transfer-Encoding: chunked"):
        async with connected(service.port) as line:
            await line.send(head(f"PUT {FILES}/a", cut) + (b"ffff\r\n" if "chunked" in cut else b"") + bytes(60_000))
            await until(lambda: spooled(service))
        await until(lambda: not spooled(service))

    assert (calls_of(service, "put_file"), os.listdir(workspace)) == ([], ["hello.txt"])


async def test_an_upload_that_was_not_let_in_leaves_nothing(
    service: RunningService, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.settings["calls_per_key"] = 1
    await service.restart()
    client = service.client
    await client.post("/v1/calls", params={"wait": 0}, json={"tool": "wait_free"})

    answer = await client.put(f"{FILES}/a", content=b"x")

    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "TooManyCalls", "1")
    assert spooled(service) == []


async def test_uploads_that_wait_take_no_more_room_than_there_is(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    for _ in range(16):
        answer = await client.put(f"{FILES}/.env", params={"wait": 0}, content=bytes(LIMIT))
        assert answer.status_code == 202

    full = await client.put(f"{FILES}/a", content=b"x")
    await client.post(f"/v1/calls/{answer.headers['toolcrib-call']}/cancel")
    fine = await client.put(f"{FILES}/a", content=b"x")

    assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (503, "Overloaded", "5")
    assert fine.status_code == 201
    assert len(spooled(service)) == 15


async def test_what_a_person_must_allow_waits_and_is_written_when_it_is_allowed(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    put = await client.put(f"{FILES}/.env", params={"wait": 0}, content=b"KEY=1")

    assert (put.status_code, put.headers["location"]) == (202, f"/v1/calls/{put.headers['toolcrib-call']}")
    assert (put.json()["status"], put.json()["id"]) == ("pending", put.headers["toolcrib-call"])
    assert len(spooled(service)) == 1
    await client.post(f"/v1/asks/{(await ask_of(client))['id']}/answer", json={"decision": "allow"})
    call = (await client.get(put.headers["location"], params={"wait": HANG})).json()
    assert (call["status"], (workspace / ".env").read_bytes(), spooled(service)) == ("completed", b"KEY=1", [])


async def test_a_request_that_waits_long_enough_has_the_answer_of_the_person(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    (workspace / ".env").write_bytes(b"KEY=1")
    for decision, status in (("allow", 200), ("deny", 403)):
        asking = asyncio.create_task(client.get(f"{FILES}/.env"))
        await client.post(f"/v1/asks/{(await ask_of(client))['id']}/answer", json={"decision": decision})
        answer = await asking
        assert answer.status_code == status
    assert_failed(answer, 403, "PermissionDenied")


@pytest.mark.parametrize("decision", ["deny", "cancel", None])
async def test_an_upload_goes_with_its_call_however_that_ends(
    service: RunningService, client: httpx.AsyncClient, workspace: Path, decision: str | None
) -> None:
    service.settings["ask_timeout"] = 0.2 if decision is None else 60
    await service.restart()
    client = service.client
    put = await client.put(f"{FILES}/.env", params={"wait": 0}, content=b"KEY=1")
    if decision == "cancel":
        await client.post(f"{put.headers['location']}/cancel")
    elif decision:
        await client.post(f"/v1/asks/{(await ask_of(client))['id']}/answer", json={"decision": decision})

    call = (await client.get(put.headers["location"], params={"wait": HANG})).json()

    codes = {"deny": "PermissionDenied", "cancel": "Canceled", None: "AskExpired"}
    assert (call["error"]["code"], spooled(service)) == (codes[decision], [])
    assert not (workspace / ".env").exists()


@pytest.mark.parametrize("end", ["restart", "crash"])
async def test_an_upload_that_waits_for_a_person_is_still_there_after_a_restart(
    service: RunningService, client: httpx.AsyncClient, workspace: Path, end: str
) -> None:
    put = await client.put(f"{FILES}/.env", params={"wait": 0}, content=ANY_BYTES)
    await ask_of(client)
    (service.data_dir / "uploads" / ("0" * 32)).write_bytes(b"nobody's")
    (service.data_dir / "uploads" / ("1" * 32 + ".part")).write_bytes(b"half")
    await (service.restart() if end == "restart" else service.crash())
    if end == "crash":
        await service.open()
    client = service.client

    assert len(spooled(service)) == 1
    await client.post(f"/v1/asks/{(await ask_of(client))['id']}/answer", json={"decision": "allow"})
    call = (await client.get(put.headers["location"], params={"wait": HANG})).json()
    assert call["status"] == "completed", call["error"]
    assert ((workspace / ".env").read_bytes(), spooled(service)) == (ANY_BYTES, [])


async def test_an_upload_that_was_changed_on_the_disk_is_not_written(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    put = await client.put(f"{FILES}/.env", params={"wait": 0}, content=b"KEY=1")
    [name] = spooled(service)
    (service.data_dir / "uploads" / name).write_bytes(b"KEY=2")
    await client.post(f"/v1/asks/{(await ask_of(client))['id']}/answer", json={"decision": "allow"})

    call = (await client.get(put.headers["location"], params={"wait": HANG})).json()

    assert (call["error"]["code"], (workspace / ".env").exists()) == ("EIO", False)


async def test_rules_and_bounds_and_hooks_count_here_too(service: RunningService, toys: Toys, workspace: Path) -> None:
    hook = ToyHook("guard", {"delete_file"})
    hook.refusal = "Nothing is deleted here."
    service.hooks.append(hook)
    await service.restart()
    (workspace / "a").write_text("x")
    for line in ({"permission": "edit", "pattern": "locked/*"}, {"permission": "read", "pattern": "hidden*"}):
        await service.client.post("/v1/rules", json=line | {"action": "deny", "scope": "global"})
    made = {"principal": "ci", "bounds": {"tools": ["get_file"]}}
    token = (await service.client.post("/v1/keys", json=made)).json()["token"]

    assert_failed(await service.client.put(f"{FILES}/locked/a", content=b"x"), 403, "PermissionDenied")
    assert_failed(await service.client.get(f"{FILES}/hidden"), 403, "PermissionDenied")
    assert_failed(await service.client.delete(f"{FILES}/a"), 403, "HookDenied")
    async with service.client_of(token) as bound:
        assert (await bound.get(f"{FILES}/a")).status_code == 200
        assert_failed(await bound.put(f"{FILES}/a", content=b"y"), 403, "PermissionDenied")
    assert (sorted(os.listdir(workspace)), spooled(service)) == (["a", "hello.txt"], [])


async def test_a_key_that_may_only_read_calls_reads_no_files(service: RunningService) -> None:
    made = await service.client.post("/v1/keys", json={"principal": "ci", "scopes": ["calls:read"]})
    async with service.client_of(made.json()["token"]) as reader:
        answers = [
            await reader.get(FILES),
            await reader.get(f"{FILES}/hello.txt"),
            await reader.head(f"{FILES}/hello.txt"),
            await reader.put(f"{FILES}/hello.txt", content=b"x"),
            await reader.delete(f"{FILES}/hello.txt"),
        ]

    assert [answer.status_code for answer in answers] == [403] * 5
    assert service.rows("SELECT * FROM calls") == []


async def test_a_session_has_its_own_files_and_an_admin_sees_those_of_others(service: RunningService) -> None:
    token = (await service.client.post("/v1/keys", json={"principal": "ann"})).json()["token"]
    async with service.client_of(token) as ann:
        await ann.post("/v1/sessions", json={"id": "hers"})
        await ann.put("/v1/sessions/hers/files/a", content=b"hers")
    path, query = "/v1/sessions/hers/files/a", {"principal": "ann"}

    without = await service.client.get(path)
    seen = await service.client.get(path, params=query)
    call = (await service.client.get(f"/v1/calls/{seen.headers['toolcrib-call']}")).json()

    assert (without.status_code, seen.content) == (404, b"hers")
    assert (call["principal"], call["session"]) == ("ann", "hers")


async def test_polling_a_file_is_no_loop(service: RunningService) -> None:
    await service.client.post("/v1/sessions", json={"id": "mine"})
    path = "/v1/sessions/mine/files"
    await service.client.put(f"{path}/a", content=b"x")

    answers = [await service.client.get(f"{path}{name}") for name in ("/a", "") for _ in range(5)]

    assert [answer.status_code for answer in answers] == [200] * 10


async def test_a_repeat_with_the_same_key_is_the_same_call(service: RunningService, client: httpx.AsyncClient) -> None:
    async def put(content: bytes, key: str = "k") -> httpx.Response:
        return await client.put(f"{FILES}/a", content=content, headers={"Idempotency-Key": key})

    first, again, other = await put(b"x"), await put(b"x"), await put(b"y")
    gone = [await client.delete(f"{FILES}/a", headers={"Idempotency-Key": "d"}) for _ in range(2)]

    assert first.json() == again.json()
    assert [answer.status_code for answer in (first, again, other, *gone)] == [201, 201, 409, 204, 204]
    assert other.json()["code"] == "IdempotencyConflict"
    assert (len(calls_of(service, "put_file")), len(calls_of(service, "delete_file"))) == (1, 1)
    assert spooled(service) == []


class Swapped:
    """A workspace in which somebody is faster than who reads."""

    def __init__(self, workspace: Any, swap: Callable[[], object]) -> None:
        self._workspace = workspace
        self._swap = swap

    def open(self, path: str) -> Any:
        self._swap()
        return self._workspace.open(path)


async def test_a_file_that_is_swapped_after_the_look_is_not_read(
    service: RunningService, client: httpx.AsyncClient, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_bytes(b"public")
    (workspace / "secret").write_bytes(b"secret")
    rule = {"permission": "read", "pattern": "secret", "action": "deny", "scope": "global"}
    await client.post("/v1/rules", json=rule)

    def swap() -> None:
        (workspace / "a").unlink()
        (workspace / "a").symlink_to("secret")

    place = service.services.workspaces.of
    monkeypatch.setattr(service.services.workspaces, "of", lambda session: Swapped(place(session), swap))
    answer = await client.get(f"{FILES}/a")

    assert_failed(answer, 403, "PermissionDenied")
    assert calls_of(service, "get_file") == ["completed", "error"]


async def test_a_file_that_never_stays_the_same_is_given_up(
    service: RunningService, client: httpx.AsyncClient, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_bytes(b"")

    def grow() -> None:
        with (workspace / "a").open("ab") as file:
            file.write(b"x")

    place = service.services.workspaces.of
    monkeypatch.setattr(service.services.workspaces, "of", lambda session: Swapped(place(session), grow))
    answer = await client.get(f"{FILES}/a")

    assert_failed(answer, 409, "ESTALE")
    assert calls_of(service, "get_file") == ["completed"] * 2


async def test_a_reader_has_the_whole_file_it_began_with_and_holds_up_no_writer(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    old = os.urandom(8 * 1024 * 1024)
    (workspace / "a").write_bytes(old)

    async with client.stream("GET", f"{FILES}/a") as answer:
        put = await client.put(f"{FILES}/a", content=b"new")
        got = await answer.aread()

    assert (put.status_code, got == old, (workspace / "a").read_bytes()) == (200, True, b"new")


def opened(file: Path) -> int:
    """How often this process has a file open."""
    fds = Path("/proc/self/fd")
    return sum(fd.is_symlink() and os.path.samefile(fd, file) for fd in fds.iterdir() if fd.exists())


@pytest.mark.parametrize("is_patient", [True, False])
async def test_who_leaves_or_sleeps_in_the_middle_of_a_download_holds_no_file_open(
    service: RunningService, workspace: Path, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    monkeypatch.setattr(ranges, "SEND_SECONDS", 60 if is_patient else 0.05)
    (workspace / "a").write_bytes(bytes(32 * 1024 * 1024))

    async with connected(service.port) as line:
        await line.send(head(f"GET {FILES}/a"))
        await line.reader.readuntil(b"\r\n\r\n")
        if is_patient:
            await until(lambda: opened(workspace / "a") == 1)
        else:
            await until(lambda: not opened(workspace / "a"))
    await until(lambda: not opened(workspace / "a"))


async def test_a_file_that_is_cut_while_it_is_read_breaks_the_download_off(
    service: RunningService, client: httpx.AsyncClient, workspace: Path
) -> None:
    (workspace / "a").write_bytes(bytes(32 * 1024 * 1024))

    async with client.stream("GET", f"{FILES}/a") as answer:
        os.truncate(workspace / "a", 1000)
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
            await answer.aread()
    assert (await client.get(f"{FILES}/a")).content == bytes(1000)


async def test_a_folder_is_listed_page_by_page(client: httpx.AsyncClient, workspace: Path) -> None:
    for name in ("b/x", "b/y/z", "b-c/x", "a", "d"):
        (workspace / name).parent.mkdir(exist_ok=True, parents=True)
        (workspace / name).write_text(name)
    (workspace / "link").symlink_to("b")
    (workspace / os.fsdecode(b"c\xff")).mkdir()
    (workspace / os.fsdecode(b"c\xff/in")).write_text("x")
    paths = ["a", "b", "b/x", "b/y", "b-c", "b-c/x", "c\ufffd", "c\ufffd/in", "d", "hello.txt", "link"]

    for limit in (1, 2, 3, 100):
        found, cursor = [], None
        while True:
            params = {"depth": 2, "limit": limit} | ({"cursor": cursor} if cursor else {})
            page = (await client.get(FILES, params=params)).json()
            found += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["data"]) == limit
        assert [entry["path"] for entry in found] == paths, limit

    kinds = {entry["path"]: entry["type"] for entry in found}
    assert (kinds["a"], kinds["b"], kinds["link"]) == ("file", "directory", "symlink")
    got = await client.get(f"{FILES}/b/x")
    assert [entry for entry in found if entry["path"] == "b/x"] == [
        {
            "path": "b/x",
            "type": "file",
            "size": 3,
            "modified": found[2]["modified"],
            "etag": got.headers["etag"].strip('"'),
        }
    ]
    below = (await client.get(FILES, params={"path": "link/y"})).json()["data"]
    assert [entry["path"] for entry in below] == ["b/y/z"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("nowhere", 404, "ENOENT"), ("hello.txt", 409, "ENOTDIR"), ("..", 403, "OutsideWorkspace")],
)
async def test_what_cannot_be_listed_has_its_status(
    client: httpx.AsyncClient, path: str, status: int, code: str
) -> None:
    assert_failed(await client.get(FILES, params={"path": path}), status, code)


async def test_other_methods_are_told_which_there_are(client: httpx.AsyncClient) -> None:
    answer = await client.patch(f"{FILES}/hello.txt", content=b"x")

    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, PUT")


async def test_a_full_disk_is_told_and_leaves_nothing(
    service: RunningService, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.sandbox.files.uploads.os.fsync", fsync)
    answer = await client.put(f"{FILES}/a", content=b"x")
    monkeypatch.undo()

    assert (answer.status_code, answer.json()["code"]) == (507, "ENOSPC")
    assert (spooled(service), calls_of(service, "put_file")) == ([], [])
