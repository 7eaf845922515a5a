"""The loops in the README, run as they stand there against a real service and a gateway that follows a script."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.services import KEY, RunningService
from tests.support.toy_tools import Toys

README = Path(__file__).parent.parent / "README.md"
MOST_LINES = 20
QUESTION = "What does the note say?"


class Gateway:
    """Answers each request with the next of its lines, and keeps what it was asked."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []


@contextmanager
def gateway(lines: list[dict[str, Any]]) -> Iterator[tuple[str, Gateway]]:
    told = Gateway(lines)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.asked.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            answer = json.dumps(told.lines[len(told.asked) - 1]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def loop_of(dialect: str) -> str:
    found = re.search(rf"<!-- loop: {dialect} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


async def run_loop(dialect: str, service: RunningService, tmp_path: Path, env: dict[str, str]) -> str:
    script = tmp_path / "agent.py"
    script.write_text(loop_of(dialect))
    given = {"TOOLCRIB_URL": service.url, "TOOLCRIB_API_KEY": KEY, "MODEL": "some-model", "NO_PROXY": "*"} | env
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), QUESTION, env=given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().strip()


@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic"])
def test_the_loops_are_short(dialect: str) -> None:
    assert len([line for line in loop_of(dialect).splitlines() if line.strip()]) <= MOST_LINES


async def test_the_loop_for_openai_runs_as_it_stands(service: RunningService, toys: Toys, tmp_path: Path) -> None:
    echo = {"name": "echo", "arguments": json.dumps({"text": "buy milk"})}
    calls = [{"id": "call_Zk3", "type": "function", "function": echo}]
    wants = {"role": "assistant", "content": None, "tool_calls": calls}
    says = {"role": "assistant", "content": "It says: buy milk."}
    lines = [
        {"id": f"c{number}", "choices": [{"index": 0, "message": one}]} for number, one in enumerate((wants, says))
    ]
    with gateway(lines) as (url, told):
        env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-none"}
        out = await run_loop("openai-chat", service, tmp_path, env)

    (path, first, headers), (_, second, _) = told.asked
    assert out == "It says: buy milk."
    assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-none")
    assert "echo" in [tool["function"]["name"] for tool in first["tools"]]
    assert second["messages"] == [
        {"role": "user", "content": QUESTION},
        wants,
        {"role": "tool", "tool_call_id": "call_Zk3", "content": "buy milk"},
    ]


async def test_the_loop_for_anthropic_runs_as_it_stands(service: RunningService, toys: Toys, tmp_path: Path) -> None:
    wants = [{"type": "tool_use", "id": "toolu_Zk3", "name": "echo", "input": {"text": "buy milk"}}]
    says = [{"type": "text", "text": "It says: buy milk."}]
    lines = [
        {"id": "msg_1", "type": "message", "role": "assistant", "content": wants, "stop_reason": "tool_use"},
        {"id": "msg_2", "type": "message", "role": "assistant", "content": says, "stop_reason": "end_turn"},
    ]
    with gateway(lines) as (url, told):
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-none"}
        out = await run_loop("anthropic", service, tmp_path, env)

    (path, first, headers), (_, second, _) = told.asked
    assert out == "It says: buy milk."
    assert (path, headers["x-api-key"]) == ("/v1/messages", "sk-none")
    assert "echo" in [tool["name"] for tool in first["tools"]]
    assert [tool.get("cache_control") for tool in first["tools"]][-1] == {"type": "ephemeral"}
    assert second["messages"] == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": wants},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_Zk3", "content": "buy milk"}]},
    ]
