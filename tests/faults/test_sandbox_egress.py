"""The one way out of the walls: what is listed passes, nothing else does, and a secret goes only where it belongs."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.faults.sandboxed_service import BACKENDS, WalledService, run, walled

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("sandbox")]  # they share the limit of one user id

CANARY = "canary-9c1f5e0b7a3d4826"
EVENTS = {"Accept": "application/json"}


class Upstream(ThreadingHTTPServer):
    """A site that answers with all that it was sent."""

    def __init__(self) -> None:
        self.heard: list[dict[str, str]] = []
        heard = self.heard

        class Site(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(dict(self.headers.items()))
                body = f"hello {self.path} {json.dumps(dict(self.headers.items()))}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Site)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def listening() -> Iterator[Upstream]:
    site = Upstream()
    thread = Thread(target=site.serve_forever, daemon=True)
    thread.start()
    yield site
    site.shutdown()
    thread.join()
    site.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[Upstream]:
    with listening() as site:
        yield site


@pytest.fixture(scope="module", params=BACKENDS)
def service(request: pytest.FixtureRequest, site: Upstream) -> Iterator[WalledService]:
    variables = {
        "TOOLCRIB_NETWORK_POLICY": json.dumps(
            {"type": "allowlist", "allowed_domains": ["localhost", "*.allowed.test"]}
        ),
        "TOOLCRIB_PRIVATE_NETWORKS": json.dumps(["127.0.0.0/8", "::1/128"]),
    }
    sandbox = {"network": "allowlist", "egress_degraded_ok": True, "egress_ports": [site.port]}
    with walled(request.param, variables=variables, **sandbox) as started:
        yield started


async def shell(service: WalledService, command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    async with service.client() as client:
        call = await run(client, command, **more)
    return call["result"]["structured"]["stdout"], call


async def scripted(service: WalledService, *lines: str) -> tuple[str, dict[str, Any]]:
    """From a file: what it does is not read off the command line, so nobody is asked."""
    await asyncio.to_thread((service.workspace / "script").write_text, "\n".join(lines))
    return await shell(service, "bash script 2>/dev/null; true")


async def decisions(service: WalledService, call: dict[str, Any]) -> list[dict[str, Any]]:
    """What was told of connections. It is told on its own, so that it may come a moment after the end."""
    async with service.client() as client:
        for _ in range(100):
            page = await client.get(f"/v1/calls/{call['id']}/events", headers=EVENTS)
            found = [event["data"] for event in page.json()["data"] if event["type"] == "network.decision"]
            if found:
                return found
            await asyncio.sleep(0.02)
    return []


async def test_a_listed_host_passes_and_is_told(service: WalledService, site: Upstream) -> None:
    said, call = await shell(service, f"curl --noproxy '' -sS -m 10 http://localhost:{site.port}/a")

    assert said.startswith("hello /a ")
    assert call["sandbox"]["network"] == "allowlist"
    assert call["sandbox"].get("degraded", False) == (service.backend == "landlock")
    assert [(one["host"], one["port"], one["verdict"]) for one in await decisions(service, call)] == [
        ("localhost", site.port, "allow")
    ]


async def test_another_host_is_refused_with_a_reason(service: WalledService, site: Upstream) -> None:
    said, call = await shell(service, f"curl --noproxy '' -sS -m 10 -i http://other.test:{site.port}/; true")

    assert "403" in said.splitlines()[0]
    assert "x-proxy-error: blocked-by-allowlist" in said.lower()
    assert [(one["host"], one["verdict"]) for one in await decisions(service, call)] == [("other.test", "deny")]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.test", "localhost\\0.evil.test", "evil.test\\0.allowed.test", "evil.test%00.allowed.test", "a b", "-"),
        *("user@localhost", "localhost@evil.test", "0x7f.1", "2130706433", "127.0.0.1", "[::1]", "..", "x" * 300),
    ],
)
async def test_a_hostile_name_opens_nothing(service: WalledService, site: Upstream, host: str) -> None:
    """Said to the proxy byte by byte, as no client would."""
    heard = len(site.heard)
    target = f"{host.replace('%', '%%')}:{site.port}"
    ask = f"CONNECT {target} HTTP/1.1\\r\\nHost: x\\r\\nProxy-Authorization: Basic %s\\r\\n\\r\\n"
    script = [
        "at=${http_proxy#http://}; at=${at%/}",
        'who=""; case "$at" in *@*) who=${at%@*}; at=${at##*@};; esac',
        "exec 3<>/dev/tcp/${at%:*}/${at##*:}",
        f"printf '{ask}' $(printf %s \"$who\" | base64 -w0) >&3",
        "timeout 5 head -c 12 <&3",
    ]

    said, _ = await scripted(service, *script)

    assert said[:9] == "HTTP/1.1 "
    assert said[9:12] in ("400", "403")
    assert len(site.heard) == heard


async def test_a_listed_name_may_be_spelt_as_names_are(service: WalledService, site: Upstream) -> None:
    said, _ = await shell(service, f"curl --noproxy '' -sS -m 10 http://LOCALHOST.:{site.port}/b")

    assert said.startswith("hello /b ")


async def test_nothing_else_leads_out(service: WalledService, site: Upstream) -> None:
    tries = [
        f"(exec 3<>/dev/tcp/127.0.0.1/{site.port}) && echo DIRECT",
        f"(exec 3<>/dev/udp/127.0.0.1/{site.port}) && echo UDP",
        f"(exec 3<>/dev/tcp/::1/{site.port}) && echo SIX",
        "getent hosts example.com && echo DNS",
        f"curl -sS -m 5 --noproxy '*' http://127.0.0.1:{site.port}/ && echo BARE",
    ]

    said, _ = await scripted(service, *tries)

    assert said == ""


async def test_a_secret_reaches_its_domain_and_nothing_else_ever_sees_it(
    service: WalledService, site: Upstream
) -> None:
    policy = {
        "type": "allowlist",
        "allowed_domains": ["localhost", "x.allowed.test"],
        "domain_secrets": [{"domain": "localhost", "name": "API_KEY", "value": CANARY}],
    }
    async with service.client() as client:
        made = await client.post("/v1/sessions", json={"id": f"s-{service.backend}", "network_policy": policy})
        assert made.status_code == 201, made.text
        call = await run(
            client,
            "env | grep API_KEY; export no_proxy= NO_PROXY=; "
            f'curl -sS -m 10 -H "Authorization: Bearer $API_KEY" http://localhost:{site.port}/secret; '
            f'curl -sS -m 10 -u "me:$API_KEY" http://localhost:{site.port}/basic; '
            f'curl -sS -m 10 -H "X: $API_KEY" http://x.allowed.test:{site.port}/; true',
            session=f"s-{service.backend}",
        )
        events = (await client.get("/v1/events", params={"after": 0}, headers=EVENTS)).text

    sent = site.heard[-2:]
    assert sent[0]["Authorization"] == f"Bearer {CANARY}"
    assert sent[1]["Authorization"] == f"Basic {base64.b64encode(f'me:{CANARY}'.encode()).decode()}"
    assert "API_KEY=tsec_" in call["result"]["structured"]["stdout"]
    assert CANARY not in json.dumps(call) + events
    assert found_in(service.folder, CANARY) == []


def found_in(folder: Path, text: str) -> list[str]:
    """Which files have it, as it is or in base64."""
    forms = [text.encode(), *(base64.b64encode(b" " * shift + text.encode())[4:-4] for shift in range(3))]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(form in path.read_bytes() for form in forms)]


async def test_without_the_operators_word_a_weaker_way_out_is_none(site: Upstream) -> None:
    variables = {"TOOLCRIB_NETWORK_POLICY": json.dumps({"allowed_domains": ["localhost"]})}
    with walled("landlock", variables, network="allowlist", egress_ports=[site.port]) as service:
        async with service.client() as client:
            call = await run(client, "true")

    assert (call["status"], call["error"]["code"]) == ("error", "SandboxUnavailable")
