"""Count the functions and files of `app/` that a call runs through: python scripts/walks.py [PROJECT] [--list WALK]

A real service is started in this process and profiled; a client in another process sends each request three times, and
the last one is counted, so that caches are warm as they are in use. A function is counted once, by its file and name;
lambdas, comprehensions, class bodies and dataclass methods are not counted. Code of child processes is not seen.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import Request, urlopen

ECHO_SERVER = """
import json, sys
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"name": "echo", "description": "Echo", "inputSchema": SCHEMA}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        reply["result"] = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    elif message["method"] == "tools/list":
        reply["result"] = {"tools": [TOOL]}
    elif message["method"] == "tools/call":
        reply["result"] = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}
    else:
        reply["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(reply), flush=True)
"""

PORT = 18731
KEY = "walk-key-walk-key-walk-key"
MESSAGE = {
    "role": "assistant",
    "tool_calls": [
        {"id": "ID", "type": "function", "function": {"name": "read_file", "arguments": '{"file_path": "a.txt"}'}}
    ],
}
#: Walk -> path, body. ID is replaced by a number that is new for each request.
WALKS: dict[str, tuple[str, Any]] = {
    "read_file": ("/v1/calls?wait=30", {"tool": "read_file", "arguments": {"file_path": "a.txt"}}),
    "shell_command": ("/v1/calls?wait=30", {"tool": "shell_command", "arguments": {"command": "ls"}}),
    "mcp_stdio": ("/v1/calls?wait=30", {"tool": "mcp__echo__echo", "arguments": {"text": "hi"}}),
    "run": ("/v1/run/openai-chat?wait=30", MESSAGE),
    "ask": (
        "/v1/calls?wait=30",
        {"tool": "write_file", "arguments": {"file_path": "b.txt", "content": "x"}, "metadata": {"n": "ID"}},
    ),
}


class Recorder:
    """The functions of `app/` that were entered while `is_on`."""

    def __init__(self, app: Path) -> None:
        self.prefix = f"{app}{os.sep}"
        self.is_on = False
        self.seen: dict[tuple[str, str], None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.is_on:
            return
        code = frame.f_code
        if code.co_filename.startswith(self.prefix) and not code.co_name.startswith("<"):
            self.seen[code.co_filename.removeprefix(self.prefix), code.co_qualname] = None


def post(url: str, key: str, body: Any) -> Any:
    text = json.dumps(body).replace('"ID"', json.dumps(str(time.time_ns())))
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(url, text.encode(), headers), timeout=60) as response:
        return json.load(response)


def get(url: str, key: str) -> Any:
    with urlopen(Request(url, headers={"Authorization": f"Bearer {key}"}), timeout=60) as response:
        return json.load(response)


def answer_asks(base: str, key: str, stop: threading.Event) -> None:
    while not stop.is_set():
        for ask in get(f"{base}/v1/asks?status=open", key)["data"]:
            post(f"{base}/v1/asks/{ask['id']}/answer", key, {"decision": "allow_once"})
        time.sleep(0.2)


def client(key: str) -> None:
    """Runs in a process of its own, as the profiled service must not see it; told what to do line by line."""
    base = f"http://127.0.0.1:{PORT}"
    for line in sys.stdin:
        walk = line.strip()
        if walk == "ready":
            for _ in range(300):
                with contextlib.suppress(Exception):
                    if any(tool["name"] == "mcp__echo__echo" for tool in get(f"{base}/v1/tools", key)["items"]):
                        break
                time.sleep(0.2)
            print("ok", flush=True)
            continue
        path, body = WALKS[walk]
        stop = threading.Event()
        answers = threading.Thread(target=answer_asks, args=(base, key, stop))
        if walk == "ask":
            answers.start()
        done = post(base + path, key, body)
        stop.set()
        if walk == "ask":
            answers.join()
        print(json.dumps(done)[:300], flush=True)


def drive(recorder: Recorder, key: str, found: dict[str, dict[tuple[str, str], None]]) -> None:
    """In a thread beside the service: send each request, record the last, then stop the service."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--client", key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for walk in ["ready", *WALKS]:
            for attempt in range(1 if walk == "ready" else 3):
                time.sleep(0.5)
                recorder.seen = {}
                recorder.is_on = attempt == 2
                print(walk, file=process.stdin, flush=True)
                answer = process.stdout.readline()
                time.sleep(0.5)
                recorder.is_on = False
            if walk != "ready":
                found[walk] = recorder.seen
                print(f"{walk}: {answer.strip()[:160]}", file=sys.stderr)
    finally:
        process.kill()
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    project = Path(sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("--") else ".").absolute()
    sys.path.insert(0, str(project))
    folder = Path(tempfile.mkdtemp())
    (folder / "echo.py").write_text(ECHO_SERVER)
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "a.txt").write_text("hello\n")
    folder.chmod(0o755)
    config = folder / "toolcrib.toml"
    config.write_text(
        f'data_dir = "{folder}/data"\nworkspace = "{workspace}"\nport = {PORT}\napi_key = "{KEY}"\n'
        f'[[rules]]\npermission = "edit"\npattern = "*"\naction = "ask"\n'
        f'[mcp.servers.echo]\ncommand = "{sys.executable}"\nargs = ["{folder}/echo.py"]\n'
        '[[rules]]\npermission = "mcp"\npattern = "*"\naction = "allow"\n'
        '[[rules]]\npermission = "bash"\npattern = "*"\naction = "allow"\n'
    )
    recorder = Recorder(project / "app")
    found: dict[str, dict[tuple[str, str], None]] = {}
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    script = tomllib.loads((project / "pyproject.toml").read_text())["project"]["scripts"]["toolcrib"]
    module, name = script.split(":")
    entry = getattr(import_module(module), name)
    driver = threading.Thread(target=drive, args=(recorder, KEY, found))
    driver.start()
    sys.argv = ["toolcrib", "serve", "--config", str(config)]
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        entry()
    sys.setprofile(None)
    base = set(found.get("read_file", {}))
    for walk, seen in found.items():
        files = {file for file, _ in seen}
        extra = len(files - {file for file, _ in base})
        print(f"{walk}: {len(seen)} functions, {len(files)} files (besides read_file: {extra})")
    (Path(tempfile.gettempdir()) / f"walks-{project.name}.json").write_text(
        json.dumps({walk: [f"{file}:{name}" for file, name in seen] for walk, seen in found.items()}, indent=1)
    )


if __name__ == "__main__":
    if "--client" in sys.argv:
        client(sys.argv[-1])
    else:
        main()
