"""An MCP server without any library, for pipes: it starts at once and misbehaves as it is told.

The first argument is how it takes hellos: `older`, `modern` (answers `server/discover`), `silent` (does not answer
what it does not know), `fragile` (ends when the first word is not `initialize`), `mute` (never says a word), `foreign`
(an unknown version), `late` (of the newer era, but slow to answer the first question). Each tool is one behaviour.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

HELLO = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "raw", "version": "1"}}
MODERN = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
Tool = Callable[[int, dict[str, Any], dict[str, Any]], None]

tools: dict[str, Tool] = {}
canceled: list[Any] = []
open_requests: dict[Any, Any] = {}
seen: list[Any] = []


def tool(run: Tool) -> Tool:
    """Takes the id of the call, its arguments and its `_meta`."""
    tools[run.__name__] = run
    return run


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def say(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")


def answer(id: Any, **result: Any) -> None:
    say(id=id, result=result)


@tool
def echo(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, **arguments)


@tool
def show_meta(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, meta=meta)


@tool
def die(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    sys.stderr.write("I fall apart: " + os.environ.get("TOKEN", "") + "\n")
    sys.stderr.flush()
    os._exit(3)


@tool
def junk(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    write('Starting up...\n\n[1, 2\n{"no": "message"}\n"text"\n{"jsonrpc": "2.0", "id": [], "method": "ping"}\n')
    answer(id)


@tool
def no_object(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    say(id=id, result="no object")


@tool
def big(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, text="x" * arguments["size"])


@tool
def slow(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    """Never answered."""


@tool
def show_canceled(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, canceled=canceled)


@tool
def flood(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    token = meta["progressToken"]
    for step in range(arguments["steps"]):
        say(
            method="notifications/progress",
            params={"progressToken": token, "progress": step, "total": arguments["steps"], "message": "on"},
        )
    answer(id)


@tool
def twice(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, number=1)
    answer(id, number=2)


@tool
def wrong(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id + 1000, is_wrong=True)
    answer(None, is_wrong=True)
    answer(True, is_wrong=True)
    answer(id, is_wrong=False)


@tool
def as_text(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(str(id), is_text=True)


@tool
def by_pieces(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": id, "result": {"text": "pieces"}})
    for at in range(0, len(line), 7):
        write(line[at : at + 7])
        time.sleep(0.001)
    write("\r\n")


@tool
def huge_line(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    for _ in range(arguments["mib"]):
        write("y" * 1024 * 1024)
    write("\n")
    answer(id)


@tool
def half(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    """Half a character, as JavaScript writes it, and a number larger than any machine's."""
    write(f'{{"jsonrpc":"2.0","id":{id},"result":{{"text":"half \\ud83d","number":{10**40}}}}}\n')


@tool
def ask(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    for number in range(arguments.get("times", 1)):
        open_requests[f"ask-{number}"] = id
        say(id=f"ask-{number}", method=arguments["method"], params={"number": number})


@tool
def take_back(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    say(id="taken", method="elicitation/create")
    say(method="notifications/cancelled", params={"requestId": "taken"})
    answer(id)


@tool
def tell(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    say(method=arguments["method"], params={"from": "raw"})
    answer(id)


@tool
def surroundings(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, env=dict(os.environ), cwd=os.getcwd(), pid=os.getpid())


@tool
def show_seen(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id, seen=seen)


@tool
def close_output(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    answer(id)
    os.close(1)
    os.close(2)
    time.sleep(600)


@tool
def sleep(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    time.sleep(arguments["seconds"])
    answer(id)


@tool
def end_listening(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    for one in [one for one, what in open_requests.items() if what == "listen"]:
        del open_requests[one]
        answer(one)
    answer(id)


@tool
def break_listening(id: int, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    for one in [one for one, what in open_requests.items() if what == "listen"]:
        del open_requests[one]
        say(method="notifications/cancelled", params={"requestId": one})
    answer(id)


def discovered(mode: str, id: int) -> None:
    if mode == "late" and "initialize" not in seen:
        time.sleep(0.7)
    if mode in ("modern", "late"):
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
        meta = {PREFIX + "serverInfo": HELLO["serverInfo"]}
        answer(id, supportedVersions=[MODERN], capabilities=capabilities, instructions="be kind", _meta=meta)
    elif mode == "foreign":
        say(id=id, error={"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"]}})
    elif mode == "fragile":
        sys.stderr.write("expected initialize\n")
        sys.exit(1)
    elif mode != "silent":
        say(id=id, error={"code": -32601, "message": "Method not found"})


def initialized(mode: str, id: int) -> None:
    if mode == "late":
        say(id=id, error={"code": -32022, "message": "too late", "data": {"supported": [MODERN]}})
    else:
        answer(id, **HELLO, capabilities={"tools": {}})


def listen(id: int, params: dict[str, Any]) -> None:
    open_requests[id] = "listen"
    meta = {PREFIX + "subscriptionId": id}
    said = {"notifications": params["notifications"], "_meta": meta}
    say(method="notifications/subscriptions/acknowledged", params=said)
    for uri in params["notifications"].get("resourceSubscriptions", []):
        say(method="notifications/resources/updated", params={"uri": uri, "_meta": meta})


def take(mode: str, message: dict[str, Any]) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    seen.append(method or message)
    if id is not None and method is None:
        if (of := open_requests.pop(id, None)) is not None:
            answer(of, answered={key: value for key, value in message.items() if key in ("result", "error")})
    elif id is None:
        if method == "notifications/cancelled":
            canceled.append(params["requestId"])
    elif method == "tools/call" and params["name"] in tools:
        tools[params["name"]](id, params.get("arguments") or {}, params.get("_meta") or {})
    else:
        others(mode, id, str(method), params)


def others(mode: str, id: int, method: str, params: dict[str, Any]) -> None:
    if method == "initialize":
        initialized(mode, id)
    elif method == "server/discover":
        discovered(mode, id)
    elif method == "subscriptions/listen":
        listen(id, params)
    elif mode != "silent":
        say(id=id, error={"code": -32601, "message": f"no {method}", "data": {"method": method}})


def main(mode: str) -> None:
    for line in sys.stdin:
        if mode != "mute":
            take(mode, json.loads(line))


if __name__ == "__main__":
    main(sys.argv[1])
