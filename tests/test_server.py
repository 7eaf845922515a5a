"""How the service is reached: HTTPS, under a path of a proxy, with forwarded addresses. Real processes and sockets."""

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.config import OWN_PATHS, Settings
from app.main import create_app
from app.net.service_client import ServiceClient, ServiceProblem, probe
from app.server import configure
from app.store import lock
from tests.support import certificates
from tests.support.cli import HANG, key_of, serving, toolcrib, url_of
from tests.support.mcp_wire import spoken
from tests.support.raw_http import connected, head
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

HELLO = {"tool": "read_file", "arguments": {"file_path": "hello.txt"}}
WAITS = {"tool": "wait_free", "arguments": {"name": "here"}}


def test_https_is_announced_and_the_printed_line_works(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "crib", address="127.0.0.1")

    with serving(tmp_path, *made.flags) as announced:
        line = announced.partition("try: ")[2]
        answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=HANG, check=True)
        found = lock.find_holder(tmp_path / ".toolcrib")

    assert json.loads(answer.stdout)["status"] == "completed"
    assert found is not None
    assert found.url == url_of(announced)
    assert found.url.startswith("https://127.0.0.1:")
    assert found.certificate == made.cert.read_text()


def test_the_command_line_trusts_the_running_services_certificate_whatever_it_is_for(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "crib.example")

    with serving(tmp_path, *made.flags):
        before = toolcrib(tmp_path, "call", "list_dir")
        certificates.make(tmp_path, "crib.example")  # renewed on the disk, not yet by the service
        after = toolcrib(tmp_path, "key", "list")

    assert (before.returncode, before.stderr) == (0, "")
    assert (after.returncode, after.stderr) == (0, "")


def test_another_certificate_is_not_trusted(tmp_path: Path) -> None:
    made, other = certificates.make(tmp_path, "crib", address="127.0.0.1"), certificates.make(tmp_path, "other")

    with serving(tmp_path, *made.flags) as announced:
        url, key = url_of(announced), key_of(tmp_path)
        for trusted in (None, other.cert.read_text()):
            with pytest.raises(ServiceProblem, match="CERTIFICATE_VERIFY_FAILED"):
                ServiceClient(url, key, trusted).request("GET", "/v1/tools")
            with pytest.raises(ServiceProblem, match="CERTIFICATE_VERIFY_FAILED"):
                probe(url, "/healthz", trusted)
        plain = toolcrib(tmp_path, "tools", "--url", url.replace("https:", "http:"), "--key", key)

    assert plain.returncode == 1
    assert "No Toolcrib responds at http://" in plain.stderr


@pytest.mark.parametrize(
    ("cert", "key", "sentence"),
    [
        ("a.crt", None, "tls_cert is set and tls_key is not; HTTPS needs both."),
        (None, "a.key", "tls_key is set and tls_cert is not; HTTPS needs both."),
        ("nothing.crt", "a.key", "The TLS certificate nothing.crt cannot be read: No such file or directory."),
        ("a.crt", ".", "The TLS key . cannot be read: Is a directory."),
        ("a.crt", "b.key", "The TLS key b.key does not belong to the certificate a.crt."),
        ("locked.crt", "locked.key", "The TLS key locked.key is encrypted; a service needs one without a password."),
        ("letter", "a.key", "The TLS certificate letter holds no certificate in PEM form."),
        ("a.crt", "letter", "The TLS certificate a.crt and key letter cannot be used: no key in PEM form."),
    ],
)
def test_a_certificate_that_cannot_be_used_is_one_sentence_before_anything_starts(
    tmp_path: Path, cert: str | None, key: str | None, sentence: str
) -> None:
    certificates.make(tmp_path, "a")
    certificates.make(tmp_path, "b")
    certificates.make(tmp_path, "locked", password="open sesame")
    (tmp_path / "letter").write_text("to a friend")
    flags = [*(["--tls-cert", cert] if cert else []), *(["--tls-key", key] if key else [])]

    refused = toolcrib(tmp_path, "serve", "--port", "0", *flags)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {sentence}")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / ".toolcrib").exists()


@pytest.fixture(scope="module")
def under_a_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("prefixed")
    with serving(folder, "--root-path", "/tools/crib/") as announced:
        headers = {"Authorization": f"Bearer {key_of(folder)}"}
        with httpx.Client(base_url=url_of(announced), headers=headers, timeout=HANG, trust_env=False) as client:
            yield client


@pytest.mark.parametrize("sent", ["/tools/crib", ""], ids=["the proxy keeps the prefix", "the proxy takes it away"])
def test_everything_works_under_the_path_of_a_proxy(under_a_path: httpx.Client, sent: str) -> None:
    client = under_a_path

    tools = client.get(f"{sent}/v1/tools")
    call = client.post(f"{sent}/v1/calls", json=HELLO)
    accepted = client.post(f"{sent}/v1/calls?wait=0", json=HELLO)
    batch = client.post(f"{sent}/v1/calls/batch", json={"calls": [HELLO]})
    mcp = client.post(f"{sent}/mcp", **spoken("tools/list"))
    document = client.get(f"{sent}/openapi.json").json()
    docs = client.get(f"{sent}/docs").text
    slashed = client.get(f"{sent}/v1/calls/")

    assert [a.status_code for a in (tools, call, batch, mcp)] == [200, 200, 200, 200]
    assert call.json()["status"] == "completed"
    assert "read_file" in mcp.text
    if accepted.status_code == 202:
        assert accepted.headers["location"] == f"/tools/crib/v1/calls/{accepted.json()['id']}"
        assert client.get(accepted.headers["location"]).json()["id"] == accepted.json()["id"]
    assert document["servers"] == [{"url": "/tools/crib"}]
    assert "/v1/calls" in document["paths"]
    assert "'/tools/crib/openapi.json'" in docs
    assert slashed.status_code == 307
    assert httpx.URL(slashed.headers["location"]).path == "/tools/crib/v1/calls"


@pytest.mark.parametrize("path", ["/tools/cribs/v1/tools", "/tools/crib", "/tools/crib/tools/crib/v1/tools", "/tools"])
def test_what_only_looks_like_the_prefix_is_not_there(under_a_path: httpx.Client, path: str) -> None:
    assert under_a_path.get(path).status_code == 404


@pytest.mark.parametrize("sent", ["/crib", ""])
async def test_the_express_lane_is_open_under_a_path_and_names_the_call_there(
    data_dir: Path, toys: Toys, sent: str
) -> None:
    service = RunningService(data_dir, toys, root_path="/crib")
    await service.open()
    try:
        service.app.middleware_stack = _nobody  # only the express lane gets past it
        accepted = await service.client.post(f"{sent}/v1/calls?wait=0", json=WAITS)
        blocked = await service.client.get(f"{sent}/v1/calls")
    finally:
        await service.close()

    assert (accepted.status_code, blocked.status_code) == (202, 418)
    assert accepted.headers["location"] == f"/crib/v1/calls/{accepted.json()['id']}"


def test_no_route_can_be_taken_for_a_prefix() -> None:
    routes = create_app(Settings()).routes

    assert {route.path.split("/")[1] for route in routes if hasattr(route, "path")} <= OWN_PATHS


async def test_forwarded_headers_are_believed_only_from_the_named_proxies() -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    chain = forwarded | {"X-Forwarded-For": "198.51.100.1, 203.0.113.7, 10.1.2.3"}

    async with echoing(Settings(forwarded_allow_ips=["127.0.0.2", "10.0.0.0/8"])) as url:
        named = await ask_from("127.0.0.2", url, forwarded)
        other = await ask_from("127.0.0.3", url, forwarded)
        longer = await ask_from("127.0.0.2", url, chain)
    async with echoing(Settings()) as url:
        nobody = await ask_from("127.0.0.1", url, forwarded)

    assert named == {"client": "203.0.113.7", "scheme": "https"}
    assert other == {"client": "127.0.0.3", "scheme": "http"}
    assert longer == {"client": "203.0.113.7", "scheme": "https"}  # the last address no proxy of ours has
    assert nobody == {"client": "127.0.0.1", "scheme": "http"}


def test_the_host_is_guarded_whatever_a_proxy_forwards(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--forwarded-allow-ips", "127.0.0.1, ::1") as announced,
        httpx.Client(base_url=url_of(announced), timeout=HANG, trust_env=False) as client,
    ):
        evil = client.get("/healthz", headers={"Host": "evil.example", "X-Forwarded-Host": "127.0.0.1"})
        page = client.get("/healthz", headers={"Origin": "https://evil.example", "X-Forwarded-Proto": "https"})
        believed = client.get("/v1/calls/", headers={"X-Forwarded-Proto": "https"})
        good = client.get("/healthz", headers={"X-Forwarded-Host": "evil.example"})

    assert [(a.status_code, a.json().get("code")) for a in (evil, page)] == [
        (403, "HostNotAllowed"),
        (403, "OriginNotAllowed"),
    ]
    assert believed.headers["location"].startswith("https://127.0.0.1:")
    assert good.status_code == 200


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--root-path", "crib"], "setting root_path: Value error, expected a path such as /tools/crib"),
        (["--root-path", "/a/../b?"], "setting root_path: Value error, expected a path such as /tools/crib"),
        (["--root-path", "/v1"], "setting root_path: Value error, /v1 is a route of the service itself"),
        (["--forwarded-allow-ips", "proxy"], "setting forwarded_allow_ips: Value error, 'proxy' does not appear"),
        (
            ["--forwarded-allow-ips", "*,::1"],
            "setting forwarded_allow_ips: Value error, `*` trusts all proxies and must be the only entry",
        ),
    ],
)
def test_a_prefix_or_proxy_that_cannot_be_is_refused(tmp_path: Path, flags: list[str], sentence: str) -> None:
    refused = toolcrib(tmp_path, "serve", "--port", "0", *flags)

    assert refused.returncode == 1
    assert refused.stderr.startswith(sentence)
    assert not (tmp_path / ".toolcrib").exists()


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    seen = json.dumps({"client": scope["client"][0], "scheme": scope["scheme"]}).encode()
    length = (b"content-length", str(len(seen)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": seen})


@asynccontextmanager
async def echoing(settings: Settings) -> AsyncIterator[str]:
    """An application that tells what it sees, served as the service is."""
    server = uvicorn.Server(configure(_echo, settings))
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server._serve([door]))
        async with asyncio.timeout(HANG):
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0)
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        server.should_exit = True
        await task


async def test_a_connection_without_requests_is_kept_for_a_while_and_then_closed() -> None:
    async with echoing(Settings(keep_alive=2)) as url, connected(httpx.URL(url).port or 0) as line:
        for _ in range(3):
            await line.send(head("GET /"))
            assert (await line.answer()).status == 200
            await asyncio.sleep(0.1)

        assert await line.rest() == b""


@pytest.mark.parametrize(("who", "seconds"), [("httpx", 5), ("aiohttp", 15), ("nginx", 60), ("AWS", 60)])
def test_it_is_kept_for_longer_than_those_at_the_other_end_keep_it(who: str, seconds: int) -> None:
    """Whoever closes first never meets a request of the other one's."""
    assert configure(_echo, Settings()).timeout_keep_alive > seconds


async def ask_from(address: str, url: str, headers: dict[str, str]) -> dict[str, Any]:
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(transport=transport, timeout=HANG) as client:
        seen: dict[str, Any] = (await client.get(url, headers=headers)).json()
    return seen
