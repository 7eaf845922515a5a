"""The ways to call a tool of an MCP server that are compared: the SDK's own client with nothing between, Toolcrib,
mcpo and FastMCP's proxy, the last two from their own lock files (`scripts/bench-peers`), and the least that a durable
proxy of a program can do.

All speak to the same echo. Whoever does so has one core for itself; the echo and the load share the other one.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bench.load import ROOT, Request, Server, Slice, cores, free_port, load, pinned
from bench.servers import KEY, TEXT

ECHO = str(ROOT / "bench" / "echo_server.py")
PEERS = ROOT / ".peers"
DIRECT, OURS, MCPO, FASTMCP, LEAST = "direct", "toolcrib", "mcpo", "fastmcp", "least"
UPSTREAMS = {
    "stdio": "a bare echo over stdio",
    "http": "a bare echo over HTTP",
    "sdk": "an echo made with the SDK, over stdio",
    "older": "the same echo with protocol 2025-11-25, the only one that mcpo supports",
}
MODERN = "2026-07-28"
ALLOWED = [{"permission": "mcp", "action": "allow"}]


class Way(Protocol):
    """One way to call the echo, under load."""

    def load(self, clients: int, seconds: float) -> Slice: ...


class Direct:
    """The SDK's client in a process of its own, on the core that the proxies have otherwise."""

    def __init__(self, kind: str, mode: str, target: list[str]) -> None:
        command = [sys.executable, "-m", "bench.direct", kind, mode, *target]
        self._process = subprocess.Popen(
            pinned(command, cores()[0]), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def load(self, clients: int, seconds: float) -> Slice:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{clients} {seconds}\n")
        self._process.stdin.flush()
        told = self._read()
        rps = told["requests"] / told["micros"] * 1e6
        return Slice(rps, told["p50"] / 1000, told["p99"] / 1000, told["cpu_us"], int(told["requests"]))

    def stop(self) -> None:
        self._process.communicate(timeout=30)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        told: dict[str, float] = json.loads(self._process.stdout.readline())
        return told


class Proxy:
    """A server between, loaded by wrk."""

    def __init__(self, server: Server, request: Request) -> None:
        self._server = server
        self._request = request

    def load(self, clients: int, seconds: float) -> Slice:
        return load(self._server, clients, seconds, self._request)


@contextlib.contextmanager
def echoing() -> Iterator[dict[str, list[str]]]:
    """The echoes: how each of them is reached. The one over HTTP runs, the others are started by whoever wants one."""
    core, port = cores()[1], free_port()
    process = subprocess.Popen(pinned([sys.executable, ECHO, "http", str(port)], core))
    commands = {name: pinned([sys.executable, ECHO, name], core) for name in ("stdio", "sdk")}
    targets = commands | {"older": commands["sdk"], "http": [f"http://127.0.0.1:{port}/mcp"]}
    try:
        yield {name: targets[name] for name in UPSTREAMS}
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def ways(echoes: dict[str, list[str]], data_dir: Path) -> Iterator[dict[str, dict[str, Way]]]:
    """All of them up at once, and each seen to work: by upstream and name."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(toolcrib(echoes, data_dir))
        found: dict[str, dict[str, Way]] = {}
        for upstream, target in echoes.items():
            kind = "http" if upstream == "http" else "stdio"
            mode = "legacy" if upstream == "older" else "auto"
            direct = Direct(kind, mode, target)
            stack.callback(direct.stop)
            mcpo = stack.enter_context(serving_mcpo(kind, target))
            fastmcp = stack.enter_context(serving_fastmcp(kind, target))
            found[upstream] = {
                DIRECT: direct,
                OURS: Proxy(ours, own_request(upstream)),
                MCPO: Proxy(mcpo, Request("/echo", {"text": TEXT}, {}, TEXT)),
                FASTMCP: Proxy(fastmcp, modern_request()),
            }
            if kind == "stdio":
                least = stack.enter_context(serving_least(mode, target, data_dir.with_name(f"least-{upstream}")))
                found[upstream][LEAST] = Proxy(least, own_request(upstream))
        yield found


@contextlib.contextmanager
def toolcrib(echoes: dict[str, list[str]], data_dir: Path) -> Iterator[Server]:
    """The service by its own command, with all echoes as its servers."""
    servers = {
        name: {"url": target[0]} if name == "http" else {"command": target[0], "args": target[1:]}
        for name, target in echoes.items()
    }
    if "older" in servers:
        servers["older"]["era"] = "older"
    settings = {"MCP": {"servers": servers}, "RULES": ALLOWED}
    os.environ |= {f"TOOLCRIB_{name}": json.dumps(value) for name, value in settings.items()}
    os.environ |= {"TOOLCRIB_API_KEY": KEY, "TOOLCRIB_LOG_LEVEL": "warning"}
    port = free_port()
    command = [sys.executable, "-m", "app", "serve", "--data-dir", str(data_dir), "--port", str(port)]

    def is_ready(port: int) -> bool:
        return all(state == "connected" for state in states(port)) and all(
            answers(port, own_request(name)) for name in echoes
        )

    with stopped(Server(command, port, cores()[0], is_ready)) as server:
        yield server


@contextlib.contextmanager
def serving_mcpo(kind: str, target: list[str]) -> Iterator[Server]:
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR"]
    if kind == "http":
        options += ["--server-type", "streamable-http"]
    command = [python_of("mcpo"), "bench/peers/mcpo_proxy.py", *options, "--", *target]
    request = Request("/echo", {"text": TEXT}, {}, TEXT)
    with stopped(Server(command, port, cores()[0], lambda port: answers(port, request))) as server:
        yield server


@contextlib.contextmanager
def serving_fastmcp(kind: str, target: list[str]) -> Iterator[Server]:
    port = free_port()
    command = [python_of("fastmcp"), "bench/peers/fastmcp_proxy.py", str(port), kind, *target]
    with stopped(Server(command, port, cores()[0], lambda port: answers(port, modern_request()))) as server:
        yield server


@contextlib.contextmanager
def serving_least(mode: str, target: list[str], data_dir: Path) -> Iterator[Server]:
    port = free_port()
    options = ["--port", str(port), "--data-dir", str(data_dir), mode]
    command = [sys.executable, "-m", "bench.minimal_proxy", *options, *target]
    request = own_request("least")
    with stopped(Server(command, port, cores()[0], lambda port: answers(port, request))) as server:
        yield server


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.stop()


def python_of(peer: str) -> str:
    return str(PEERS / f"bench-{peer}" / "bin" / "python")


def own_request(server: str) -> Request:
    body = {"tool": f"mcp__{server}__echo", "arguments": {"text": TEXT}}
    return Request(body=body, mark=f'"output":"{TEXT}"')


def modern_request() -> Request:
    """One POST is one call: no hello before it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "echo", "arguments": {"text": TEXT}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
    return Request("/mcp", body, headers | {"Accept": "application/json, text/event-stream"}, f'"text":"{TEXT}"')


def states(port: int) -> list[str]:
    """How the servers of a Toolcrib are; it is not called before they are there, since each call is recorded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/v1/mcp/servers", headers={"Authorization": f"Bearer {KEY}"})
        return [server["state"] for server in json.loads(connection.getresponse().read())["data"]]
    finally:
        connection.close()


def answers(port: int, request: Request) -> bool:
    """Whether this request is answered as it should be."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {"Content-Type": "application/json"} | request.headers
        connection.request("POST", request.path, json.dumps(request.body), headers)
        return request.mark in connection.getresponse().read().decode()
    finally:
        connection.close()
