"""README.md and docs/: every code block is run, every name and link in them exists, generated pages are up to date."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import config, mcp_config
from app.cli import main as cli
from app.core.errors import CallError
from app.core.events import EventType
from app.core.principals import Scope
from app.providers import registry
from app.tools import BUILTINS
from scripts import configuration_docs

ROOT = Path(__file__).parent.parent
PAGES = {
    "agent-loops.md",
    "concepts.md",
    "configuration.md",
    "custom-tools.md",
    "decisions.md",
    "getting-started.md",
    "http-api.md",
    "mcp.md",
    "operations.md",
    "permissions.md",
    "sandbox.md",
    "tools.md",
    "troubleshooting.md",
}
LANGUAGES = {"bash", "python", "toml", "json", "text", "mermaid"}
HANG_SECONDS = 120
MAX_AGENT_LINES = 20
MAX_README_LINES = 200
MAX_ARCHITECTURE_LINES = 150
MAX_LINE_LENGTH = 120

#: Blocks marked `no-run`: how many on which page, and why they cannot run in a test.
NOT_RUN: dict[str, tuple[int, str]] = {
    "README.md": (2, "make builds an environment and starts a service that does not end"),
    "docs/operations.md": (1, "docker is not available in the tests"),
    "docs/getting-started.md": (2, "make builds an environment and starts a service that does not end"),
}

QUESTION = "What does hello.txt say?"
ANSWER = "It greets the agent."


@dataclass(frozen=True)
class Block:
    """One fenced block. `options` are the words behind its language in the info string."""

    page: str
    line: int
    language: str
    options: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file a user saves the block in."""
        return next((option.removeprefix("file=") for option in self.options if option.startswith("file=")), None)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def blocks() -> tuple[Block, ...]:
    return tuple(block for page in pages() for block in blocks_of(page))


def blocks_of(page: Path) -> Iterator[Block]:
    name = page.relative_to(ROOT).as_posix()
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        language, *options = match[1].split() or [""]
        line = page.read_text()[: match.start()].count("\n") + 1
        yield Block(name, line, language, tuple(options), match[2])


def runnable(page: str) -> list[Block]:
    return [
        block
        for block in blocks()
        if block.page == page and block.language in ("bash", "python") and "no-run" not in block.options
    ]


def prose() -> list[Path]:
    return [*pages(), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def test_the_pages_are_those_of_the_map() -> None:
    assert {path.name for path in (ROOT / "docs").iterdir()} == PAGES
    assert set(re.findall(r"\(docs/([a-z-]+\.md)", (ROOT / "README.md").read_text())) == PAGES


def test_readme_and_architecture_are_short() -> None:
    readme, architecture = ((ROOT / name).read_text().splitlines() for name in ("README.md", "ARCHITECTURE.md"))
    assert len(readme) <= MAX_README_LINES
    assert len(architecture) <= MAX_ARCHITECTURE_LINES
    assert [line for line in readme if len(line) >= MAX_LINE_LENGTH] == []


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in prose():
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if "://" not in target and not (file.exists() and (not anchor or anchor in anchors(file))):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_and_module_that_is_named_exists() -> None:
    missing = []
    for page in prose():
        text = page.read_text()
        named = set(re.findall(r"\b(?:app|bench|deploy|migrations|openapi|scripts|tests)/[\w./-]*\w/?", text))
        named |= {module.replace(".", "/") for module in re.findall(r"\bapp(?:\.[a-z_]+)+", text)}
        if page.name == "ARCHITECTURE.md":
            packages = "api|cli|core|custom|dispatch|mcp|net|providers|runs|sandbox|store|text"
            named |= {f"app/{name}" for name in re.findall(rf"(?<![\w/])(?:{packages})/[\w./-]*\w", text)}
        missing += [f"{page.name}: {name}" for name in named if not is_there(name)]
    assert missing == []


def is_there(name: str) -> bool:
    """Whether it is a file, a folder, a module, or a name in a module."""
    paths = [ROOT / name, ROOT / f"{name}.py", (ROOT / name).parent.with_suffix(".py")]
    return any(path.exists() for path in paths)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in prose() for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert named - targets == set()


def test_the_configuration_page_is_generated() -> None:
    assert configuration_docs.PAGE.read_text() == configuration_docs.page(), "run `make docs`"


def test_reference_tables_are_complete() -> None:
    errors: list[type[CallError]] = [CallError, *subclasses(CallError)]
    names = {
        "tools.md": {name for tool in BUILTINS for name in (tool.name, *(alias.name for alias in tool.aliases))},
        "troubleshooting.md": {error.code for error in errors},
        "permissions.md": {scope.value for scope in Scope},
        "agent-loops.md": set(registry.NAMES),
        "http-api.md": {type.value for type in EventType},
        "getting-started.md": {f"toolcrib {name}" for name in commands()},
    }
    for page, expected in names.items():
        text = (ROOT / "docs" / page).read_text()
        assert [name for name in sorted(expected) if f"`{name}" not in text] == [], page


def commands() -> set[str]:
    named = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    return named | {str(group.name) for group in cli.app.registered_groups}


def subclasses(kind: type[CallError]) -> list[type[CallError]]:
    direct = [one for one in kind.__subclasses__() if one.__module__ == kind.__module__]
    return [*direct, *(below for one in direct for below in subclasses(one))]


def test_every_block_has_a_language() -> None:
    assert [f"{block.place}: {block.language}" for block in blocks() if block.language not in LANGUAGES] == []


def test_blocks_that_are_not_run_are_few_and_have_a_reason() -> None:
    marked = Counter(block.page for block in blocks() if "no-run" in block.options)
    assert marked == {page: count for page, (count, _) in NOT_RUN.items()}


def test_every_json_block_parses() -> None:
    for block in blocks():
        if block.language == "json":
            json.loads(block.text)


def test_every_toml_block_is_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOOLCRIB_")]:
        monkeypatch.delenv(name)
    for block in blocks():
        if block.language == "toml":
            file = tmp_path / "toolcrib.toml"
            file.write_text(block.text)
            settings = config.load(file)
            servers = mcp_config.read(settings).servers
            assert {server.name for server in servers} == set(settings.mcp.servers), block.place


@pytest.mark.parametrize("page", sorted({block.page for block in blocks() if runnable(block.page)}))
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    """One service per page, started in an empty folder, and one shell that runs the blocks from first to last."""
    write_files(page, tmp_path)
    with gateway() as (gateway_url, requests), service(tmp_path) as url:
        env = environment() | {
            "TOOLCRIB_URL": url,
            "TOOLCRIB_API_KEY": (tmp_path / ".toolcrib" / "admin.key").read_text().strip(),
            "OPENAI_BASE_URL": f"{gateway_url}/v1",
            "OPENAI_API_KEY": "sk-openai",
            "ANTHROPIC_BASE_URL": gateway_url,
            "ANTHROPIC_API_KEY": "sk-anthropic",
            "MODEL": "some-model",
        }
        script = page_script(page, tmp_path, port=url.rpartition(":")[2])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    outputs = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert done.returncode == 0, f"{done.stderr}\n{list(outputs.values())[-1:]}"
    check_answers(page, outputs)
    check_agents(page, outputs, requests)


def write_files(page: str, folder: Path) -> None:
    """What a user has in the folder: the environment, and the configuration that the page shows."""
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("out", "tools", "hooks"):
        (folder / name).mkdir()
    for block in blocks():
        if block.page == page and block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            with (folder / block.file).open("a") as file:
                file.write(block.text)


def page_script(page: str, folder: Path, port: str) -> str:
    """The page as one script: each block's output goes to `out/LINE`, and the first command that fails ends it."""
    parts = [
        "set -Eeuo pipefail",
        """trap 'echo "a command failed in the block at $BLOCK: $BASH_COMMAND" >&2' ERR""",
        'curl() { command curl --fail-with-body --max-time 60 "$@"; }',
    ]
    for block in runnable(page):
        text = block.text.replace("127.0.0.1:8700", f"127.0.0.1:{port}")
        if block.language == "python":
            if block.file:
                continue
            (folder / f"block_{block.line}.py").write_text(text)
            text = f".venv/bin/python block_{block.line}.py '{QUESTION}'\n"
        parts.append(f"BLOCK={block.place}\n{{\n{text}}} > out/{block.line}")
    return "\n".join(parts) + "\n"


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    return {name: value for name, value in own.items() if not name.startswith("TOOLCRIB_")} | {"NO_PROXY": "*"}


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """A service as `make run` starts it, in this folder and on a free port, ready and connected to its MCP servers."""
    log = folder / "service.log"
    with log.open("w") as file:
        command = [str(folder / ".venv" / "bin" / "toolcrib"), "serve", "--port", "0"]
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while (ready := re.search(r"is ready at (\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        headers = {"Authorization": f"Bearer {(folder / '.toolcrib' / 'admin.key').read_text().strip()}"}
        with httpx.Client(base_url=ready[1], headers=headers, trust_env=False) as client:
            while any(one["state"] == "starting" for one in client.get("/v1/mcp/servers").json()["data"]):
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield ready[1]
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def check_answers(page: str, outputs: dict[str, str]) -> None:
    """A block marked `answer` is what the block before it prints. A call that fails is shown by such a block."""
    shown = [block for block in blocks() if block.page == page and block.language in ("bash", "json", "text")]
    expected = {
        before.line: block
        for before, block in pairwise(shown)
        if "answer" in block.options and before.language == "bash"
    }
    assert len(expected) == sum("answer" in block.options for block in shown), f"{page}: an answer without a command"
    for line, block in expected.items():
        read = json.loads if block.language == "json" else str
        printed = read(outputs[str(line)])
        assert matches(read(block.text), printed), f"{block.place} shows another answer than {printed}"
    for name, output in outputs.items():
        assert int(name) in expected or '"status":"error"' not in output, f"{page}:{name}: {output}"


def matches(shown: Any, printed: Any) -> bool:
    """Whether an answer is the one shown. Ids, times and durations differ; `…` stands for anything."""
    match shown:
        case "…":
            return True
        case dict():
            rest = set(printed) - set(shown)
            return (not rest or "…" in shown) and all(
                name in printed and (name == "duration_ms" or matches(value, printed[name]))
                for name, value in shown.items()
                if name != "…"
            )
        case list():
            if shown and shown[-1] == "…":
                shown, printed = shown[:-1], printed[: len(shown) - 1]
            return len(shown) == len(printed) and all(map(matches, shown, printed))
        case str() if isinstance(printed, str):
            return varying(shown) == varying(printed)
    return bool(shown == printed)


def varying(text: str) -> str:
    """A text with its ids and times made equal."""
    text = re.sub(r"\b([a-z]+)_[0-9a-f]{24}\b", r"\1_ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "TIME", text)


@contextmanager
def gateway() -> Iterator[tuple[str, list[tuple[str, dict[str, Any], dict[str, str]]]]]:
    """An LLM gateway: the first message of its model calls read_file, the second is the answer."""
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            answer = json.dumps(model_answer(self.path, is_first=len(body["messages"]) == 1)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ARGUMENTS = {"file_path": "hello.txt", "limit": 1}
OUTPUT = "L1: Hello from your Toolcrib workspace."
TOOL_CALLS = [
    {"id": "call_Zk3", "type": "function", "function": {"name": "read_file", "arguments": json.dumps(ARGUMENTS)}}
]
TOOL_USE = [{"type": "tool_use", "id": "toolu_Zk3", "name": "read_file", "input": ARGUMENTS}]


def model_answer(path: str, *, is_first: bool) -> dict[str, Any]:
    if path == "/v1/messages":
        content: list[dict[str, Any]] = TOOL_USE if is_first else [{"type": "text", "text": ANSWER}]
        reason = "tool_use" if is_first else "end_turn"
        return {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "stop_reason": reason}
    message = {"role": "assistant", "content": None if is_first else ANSWER}
    return {
        "id": "c1",
        "choices": [{"index": 0, "message": message | ({"tool_calls": TOOL_CALLS} if is_first else {})}],
    }


def check_agents(
    page: str, outputs: dict[str, str], requests: list[tuple[str, dict[str, Any], dict[str, str]]]
) -> None:
    """An agent loop asks its model twice: with the tools, then with the result of the tool."""
    loops = [block for block in runnable(page) if "agent" in block.options]
    assert len(requests) == 2 * len(loops)
    for block, first, second in zip(loops, requests[::2], requests[1::2], strict=True):
        code = [line for line in block.text.splitlines() if line.strip()]
        assert len(code) <= MAX_AGENT_LINES, f"{block.place} is long"
        assert outputs[str(block.line)].strip() == ANSWER
        path, body, headers = first
        if path == "/v1/messages":
            assert headers["x-api-key"] == "sk-anthropic"
            assert "read_file" in [tool["name"] for tool in body["tools"]]
            assert [tool.get("cache_control") for tool in body["tools"]][-1] == {"type": "ephemeral"}
            output = second[1]["messages"][2]["content"][0]["content"]
            result = {"type": "tool_result", "tool_use_id": "toolu_Zk3", "content": output}
            expected: list[dict[str, Any]] = [
                {"role": "assistant", "content": TOOL_USE},
                {"role": "user", "content": [result]},
            ]
        else:
            assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-openai")
            assert "read_file" in [tool["function"]["name"] for tool in body["tools"]]
            output = second[1]["messages"][2]["content"]
            asked = {"role": "assistant", "content": None, "tool_calls": TOOL_CALLS}
            expected = [asked, {"role": "tool", "tool_call_id": "call_Zk3", "content": output}]
        assert output.startswith(OUTPUT)
        assert second[1]["messages"] == [{"role": "user", "content": QUESTION}, *expected]
