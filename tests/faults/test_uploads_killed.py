"""kill -9 while an upload comes, and while it waits for a person: it is written whole, or it leaves nothing."""

import asyncio
import os
from typing import Any

import httpx
import pytest

from tests.faults.fault_service import KEY
from tests.faults.service_processes import HANG, Service

pytestmark = pytest.mark.faults

FILES = "/v1/sessions/default/files"
CONTENT = bytes(range(256)) * 4096


def client_of(service: Service) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{service.port}"
    return httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=HANG, trust_env=False)


def spooled(service: Service) -> list[str]:
    return os.listdir(service.data_dir / "uploads")


async def ask_of(client: httpx.AsyncClient) -> Any:
    async with asyncio.timeout(HANG):
        while not (asks := (await client.get("/v1/asks", params={"status": "open"})).json()["data"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return asks[0]


async def test_an_upload_that_waits_outlives_kills_and_is_written_when_it_is_allowed(service: Service) -> None:
    async with client_of(service) as client:
        put = await client.put(f"{FILES}/new/.env", params={"wait": 0}, content=CONTENT)
        assert put.status_code == 202
        ask = await ask_of(client)
    for _ in range(2):
        service.kill()
        (service.data_dir / "uploads" / ("0" * 32)).write_bytes(b"nobody's")
        service.start()

    async with client_of(service) as client:
        assert len(spooled(service)) == 1
        await client.post(f"/v1/asks/{ask['id']}/answer", json={"decision": "allow"})
        call = (await client.get(put.headers["location"], params={"wait": HANG})).json()
        got = await client.get(f"{FILES}/new/.env", params={"wait": 0})

    assert (call["status"], got.status_code) == ("completed", 202)
    assert (service.data_dir / "workspace/new/.env").read_bytes() == CONTENT
    assert spooled(service) == []


async def test_an_upload_that_was_coming_leaves_nothing(service: Service) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = (
        f"PUT {FILES}/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 2000000\r\n\r\n"
    )
    writer.write(head.encode() + CONTENT)
    async with asyncio.timeout(HANG):
        while not spooled(service):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    service.kill()
    writer.transport.abort()
    service.start()

    assert spooled(service) == []
    async with client_of(service) as client:
        assert (await client.get(f"{FILES}/a")).status_code == 404
        assert (await client.get("/v1/calls", params={"tool": "put_file"})).json()["data"] == []
