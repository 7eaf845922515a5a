"""An MCP server without any library, as a client of the door meets it: what it has can change, and be watched."""

import json
import sys
from typing import Any

NOTE = {"uri": "corner://note", "name": "note", "mimeType": "text/plain"}
BYTES = {"uri": "corner://bytes", "name": "bytes", "mimeType": "application/octet-stream"}
BLOCKS = [
    {"type": "text", "text": "first", "annotations": {"audience": ["user"]}},
    {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "corner://note", "mimeType": "text/plain", "text": "a note"}},
    {"type": "resource", "resource": {"uri": "corner://bytes", "blob": "AAEC"}},
    {"type": "resource_link", "uri": "corner://note", "name": "note", "title": "The note"},
    {"type": "text", "text": "last"},
]
CHANGED = {"tools": "tools/list_changed", "prompts": "prompts/list_changed", "resources": "resources/list_changed"}
more = dict.fromkeys(CHANGED, 0)
watched: set[str] = set()


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def grown(kind: str, items: list[dict[str, Any]], **extra: Any) -> list[dict[str, Any]]:
    """The list, and as many more as it was changed."""
    new = [{"name": f"{kind}{number}", "uri": f"corner://new{number}"} | extra for number in range(more[kind])]
    return [*items, *new]


def change(what: str) -> None:
    if what in CHANGED:
        more[what] += 1
        say({"method": f"notifications/{CHANGED[what]}"})
    elif what in watched:
        say({"method": "notifications/resources/updated", "params": {"uri": what}})


def call(params: dict[str, Any]) -> dict[str, Any]:
    match params["name"]:
        case "change":
            change(params["arguments"]["what"])
            return {"content": [{"type": "text", "text": "changed"}]}
        case "blocks":
            return {"content": BLOCKS, "structuredContent": {"n": 5}, "_meta": {"corner.example/x": 1}}
        case "fail":
            return {"content": [{"type": "text", "text": "No bread."}, BLOCKS[1]], "isError": True}
    raise LookupError(params["name"])


def hello(params: dict[str, Any]) -> dict[str, Any]:
    changes = {"listChanged": True}
    capabilities = {"tools": changes, "prompts": changes, "resources": changes | {"subscribe": True}, "completions": {}}
    about = {"name": "corner", "version": "1"}
    return {"protocolVersion": "2025-11-25", "serverInfo": about, "capabilities": capabilities}


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object"}
    tools = [{"name": name, "inputSchema": schema} for name in ("change", "blocks", "fail")]
    return {"tools": grown("tools", tools, inputSchema=schema)}


def read(params: dict[str, Any]) -> dict[str, Any]:
    contents = {"corner://note": {"text": "a note"}, "corner://bytes": {"blob": "AAEC"}}
    found = contents.get(params["uri"], {"text": f"read {params['uri']}"})
    return {"contents": [{"uri": params["uri"]} | found]}


def watch(params: dict[str, Any]) -> dict[str, Any]:
    watched.add(params["uri"])
    return {}


def unwatch(params: dict[str, Any]) -> dict[str, Any]:
    watched.discard(params["uri"])
    return {}


def prompt(params: dict[str, Any]) -> dict[str, Any]:
    text = f"{sys.argv[1]} greets {params['arguments'].get('who')}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


def complete(params: dict[str, Any]) -> dict[str, Any]:
    ref = params["ref"]
    return {"completion": {"values": [ref.get("name") or ref["uri"], params["argument"]["value"]]}}


ANSWERS = {
    "initialize": hello,
    "tools/list": list_tools,
    "tools/call": call,
    "resources/list": lambda params: {"resources": grown("resources", [NOTE, BYTES])},
    "resources/templates/list": lambda params: {
        "resourceTemplates": [{"uriTemplate": "corner://page/{number}", "name": "page"}]
    },
    "resources/read": read,
    "resources/subscribe": watch,
    "resources/unsubscribe": unwatch,
    "prompts/list": lambda params: {"prompts": grown("prompts", [{"name": "greet", "arguments": [{"name": "who"}]}])},
    "prompts/get": prompt,
    "completion/complete": complete,
}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        try:
            say({"id": message["id"], "result": ANSWERS[message["method"]](message.get("params") or {})})
        except LookupError as error:
            say({"id": message["id"], "error": {"code": -32601, "message": f"no {error}"}})


if __name__ == "__main__":
    main()
