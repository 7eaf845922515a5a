"""A real browser: pages of a listed origin can follow events, pages of any other get nothing."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.services import KEY, RunningService

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
HANG = 60.0
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]

BUY = """
const buy = async () => {
  const headers = {Authorization: `Bearer ${key}`, "Content-Type": "application/json"};
  const answer = await fetch(`${service}/v1/tickets`, {method: "POST", headers, body: "{}"});
  return (await answer.json()).ticket;
};
"""
FOLLOW = (
    BUY
    + """
const run = async () => {
  const headers = {Authorization: `Bearer ${key}`, "Content-Type": "application/json"};
  const source = new EventSource(`${service}/v1/events?ticket=${await buy()}`);
  await new Promise((opened, failed) => { source.onopen = opened; source.onerror = () => failed("no stream"); });
  const event = new Promise(heard => source.addEventListener("call.pending", heard));
  const body = JSON.stringify({tool: "wait", arguments: {name: "seen by a page"}});
  const call = await fetch(`${service}/v1/calls?wait=0`, {method: "POST", headers, body});
  const seen = JSON.parse((await event).data);
  source.close();
  return {location: call.headers.get("Location"), call: (await call.json()).id, seen};
};
"""
)
REUSE = (
    BUY
    + """
const open = ticket => new Promise(said => {
  const source = new EventSource(`${service}/v1/events?ticket=${ticket}`);
  source.onopen = () => { source.close(); said("opened"); };
  source.onerror = () => said(source.readyState === EventSource.CLOSED ? "refused" : "retrying");
});
const run = async () => { const ticket = await buy(); return [await open(ticket), await open(ticket)]; };
"""
)
PRY = """
const outcome = promise => promise.then(answer => `${answer.type} ${answer.status}`, error => error.name);
const run = async () => {
  const headers = {Authorization: `Bearer ${key}`, "Content-Type": "application/json"};
  const asked = {method: "POST", headers, body: "{}"};
  const blind = {method: "POST", mode: "no-cors", body: '{"tool": "note"}'};
  const source = new EventSource(`${service}/v1/events?ticket=${ticket}`);
  const stream = await new Promise(said => {
    source.onopen = () => said("opened");
    source.onerror = () => said("no");
  });
  const image = new Image();
  const loaded = new Promise(said => { image.onload = () => said("loaded"); image.onerror = () => said("no"); });
  image.src = `${service}/v1/events?ticket=${ticket}`;
  return {
    bought: await outcome(fetch(`${service}/v1/tickets`, asked)),
    read: await outcome(fetch(`${service}/healthz`)),
    blind: await outcome(fetch(`${service}/v1/calls`, blind)),
    stream,
    image: await loaded,
  };
};
"""

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"),
    pytest.mark.timeout(300),
]


class Browser:
    """A headless chromium, spoken to as W3C WebDriver says."""

    def __init__(self, driver: httpx.AsyncClient, session: str) -> None:
        self._driver = driver
        self._session = session

    async def visit(self, page: str) -> None:
        await self._say("POST", "/url", {"url": page})

    async def where(self) -> str:
        return str(await self._say("GET", "/url"))

    async def run(self, script: str, **given: Any) -> Any:
        """What the page's `run()` answers, with this script on it."""
        wrapped = f"""
            const [{", ".join([*given, "done"])}] = arguments;
            {script}
            run().then(result => done({{result}}), error => done({{error: String(error)}}));
        """
        said = await self._say("POST", "/execute/async", {"script": wrapped, "args": list(given.values())})
        assert "error" not in said, said
        return said["result"]

    async def _say(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = await self._driver.request(method, f"/session/{self._session}{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with driven() as driver:
        with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
            options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "timeouts": {"script": int(HANG * 1000)}}
            answer = await driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert answer.status_code == 200, answer.text
            session = answer.json()["value"]["sessionId"]
            yield Browser(driver, session)
            await driver.delete(f"/session/{session}")


@asynccontextmanager
async def driven() -> AsyncIterator[httpx.AsyncClient]:
    """chromedriver on a port of its own choice."""
    assert DRIVER is not None
    process = await asyncio.create_subprocess_exec(
        DRIVER, "--port=0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port = await read_port(process)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG, trust_env=False) as driver:
            yield driver
    finally:
        process.terminate()
        await process.wait()


async def read_port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    async with asyncio.timeout(HANG):
        async for line in process.stdout:
            if b"was started successfully on port" in line:
                return int(line.split()[-1].strip(b"."))
    raise AssertionError("chromedriver did not start")


@pytest.fixture
async def page_port() -> AsyncIterator[int]:
    """A web server with one empty page; the origin is what matters."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<!doctype html><title>A page</title>"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def allow(service: RunningService, *origins: str) -> None:
    service.settings["allowed_origins"] = list(origins)
    await service.restart()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_page_of_a_listed_origin_buys_a_ticket_and_hears_an_event(
    service: RunningService, browser: Browser, page_port: int, host: str
) -> None:
    """`localhost` is another site than the service's 127.0.0.1; another port of 127.0.0.1 is the same site."""
    page = f"http://{host}:{page_port}"
    await allow(service, page)

    await browser.visit(page)
    heard = await browser.run(FOLLOW, service=service.url, key=KEY)

    assert heard["seen"]["data"]["arguments"] == {"name": "seen by a page"}
    assert heard["seen"]["call"] == heard["call"]
    assert heard["location"] == f"/v1/calls/{heard['call']}"
    assert len(service.app.state.tickets) == 0


async def test_a_ticket_is_good_once_in_a_browser_too(
    service: RunningService, browser: Browser, page_port: int
) -> None:
    page = f"http://localhost:{page_port}"
    await allow(service, page)

    await browser.visit(page)
    assert await browser.run(REUSE, service=service.url, key=KEY) == ["opened", "refused"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_page_of_a_foreign_origin_gets_nothing_and_does_nothing(
    service: RunningService, browser: Browser, page_port: int, host: str
) -> None:
    await allow(service, "https://app.example")
    ticket = (await service.client.post("/v1/tickets")).json()["ticket"]

    await browser.visit(f"http://{host}:{page_port}")
    got = await browser.run(PRY, service=service.url, key=KEY, ticket=ticket)

    assert got == {"bought": "TypeError", "read": "TypeError", "blind": "opaque 0", "stream": "no", "image": "no"}
    assert service.rows("SELECT * FROM calls") == []
    still_good = await service.client.get(
        "/v1/events", params={"ticket": ticket}, headers={"Accept": "application/json"}
    )
    assert still_good.status_code == 200


async def test_a_link_on_a_foreign_page_leads_to_what_is_open_and_nowhere_else(
    service: RunningService, browser: Browser, page_port: int
) -> None:
    follow = "const run = async () => { setTimeout(() => { location.href = where; }); };"
    look = "const run = async () => document.body.textContent;"
    for path, shown in (("/healthz", '"status":"ok"'), ("/v1/tools", "OriginNotAllowed")):
        await browser.visit(f"http://localhost:{page_port}")
        await browser.run(follow, where=service.url + path)
        async with asyncio.timeout(HANG):
            while await browser.where() != service.url + path:
                pass
        assert shown in await browser.run(look)
