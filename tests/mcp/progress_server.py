"""An MCP server over pipes without any library: its tools talk while they work, give things, break and die."""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

NUMBERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TAGS = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "default": ["c"]}
HINTS = {"again": {"readOnlyHint": True}, "echo": {"readOnlyHint": True}}
waiting: dict[Any, Any] = {}
canceled: list[Any] = []


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def mark(name: str) -> int:
    """How often this was called before, also by the programs before this one."""
    path = Path(os.environ["MARKS"]) / name
    before = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (before + 1))
    return before


def echo(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return text(args.get("text", ""))


def steps(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    for step in (1, 2, 3):
        params = {"progressToken": meta["progressToken"], "progress": step, "total": 3, "message": f"step {step}"}
        say({"method": "notifications/progress", "params": params})
    return text("walked")


def hang(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> None:
    say({"method": "notifications/progress", "params": {"progressToken": meta["progressToken"], "progress": 1}})


def given_up(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return text(str(len(canceled)))


def fail(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return text("There is no bread left.") | {"isError": True}


def files(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    data = base64.b64encode(b"\x89PNG" + bytes(args.get("size", 4))).decode()
    return {
        "content": [
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "note://1", "text": "a note"}},
            {"type": "hologram", "rays": 7},
        ]
    }


def count(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return text("five") | {"structuredContent": {"n": "five"}}


def big(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    return text("x" * args["size"])


def ask(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> None:
    waiting["q"] = id
    properties = {"name": {"type": "string", "title": "Name"}, "age": {"type": "integer"}, "tags": TAGS}
    schema = {"type": "object", "properties": properties, "required": ["name"]}
    say({"id": "q", "method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": schema}})


def page(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> None:
    waiting["p"] = id
    params = {"mode": "url", "message": "Pay.", "url": "https://example.com/pay", "elicitationId": "e1"}
    say({"id": "p", "method": "elicitation/create", "params": params})


def die(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> None:
    mark("died")
    os._exit(3)


def again(id: Any, args: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    if mark("again") == 0:
        os._exit(3)
    return text("this time")


TOOLS = {tool.__name__: tool for tool in (echo, steps, hang, given_up, fail, files, count, big, ask, page, die, again)}


def listed(name: str) -> dict[str, Any]:
    schema = {"outputSchema": NUMBERS} if name == "count" else {}
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": HINTS.get(name, {})} | schema


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    match message["method"]:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}, "resources": {}}
            info = {"name": "talking", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            return {"tools": [listed(name) for name in TOOLS]}
        case "resources/list":
            return {"resources": [{"uri": "note://1", "name": "note"}]}
        case "resources/read":
            return {"contents": [{"uri": message["params"]["uri"], "text": "a note"}]}
        case "tools/call":
            params = message["params"]
            return TOOLS[params["name"]](message["id"], params.get("arguments") or {}, params.get("_meta") or {})
    raise LookupError(message["method"])


def hear(message: dict[str, Any]) -> None:
    if message.get("method") == "notifications/cancelled":
        canceled.append(message["params"])
    elif "method" not in message:
        if (id := waiting.pop(message["id"], None)) is not None:
            say({"id": id, "result": text(json.dumps(message.get("result", message.get("error"))))})
    elif "id" in message:
        try:
            result = answer(message)
        except LookupError as error:
            say({"id": message["id"], "error": {"code": -32601, "message": f"no {error}"}})
        else:
            if result is not None:
                say({"id": message["id"], "result": result})


for line in sys.stdin:
    hear(json.loads(line))
