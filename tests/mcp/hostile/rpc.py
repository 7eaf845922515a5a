"""The bare protocol of a stdio server, by hand: no library, so that it starts at once and can do what none would.

A server file puts the checkout in front of `sys.path`, makes a `Server`, adds tools to it and runs it.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

Raw = dict[str, Any]
Handler = Callable[["Server", Raw], Raw | None]
"""Gets the request and answers with the result; None: it said whatever it wanted to say by itself."""

VERSION = "2025-11-25"
ANYTHING: Raw = {"type": "object"}
READS: Raw = {"readOnlyHint": True}


class Server:
    """A well-behaved one, but for what is changed in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = VERSION
        self.capabilities: Raw = {"tools": {"listChanged": True}}
        self.tools: list[Any] = []
        self.calls: dict[str, Handler] = {}
        self.methods: dict[str, Handler] = {
            "initialize": Server.hello,
            "tools/list": Server.list_tools,
            "tools/call": Server.call_tool,
            "ping": lambda server, request: {},
        }
        self.told: dict[str, Handler] = {}
        self.add("echo", lambda server, request: text(arguments(request).get("text", "")), annotations=READS)

    def add(self, name: str, handler: Handler, **more: Any) -> None:
        self.tools.append({"name": name, "inputSchema": ANYTHING} | more)
        self.calls[name] = handler

    def run(self) -> None:
        for line in sys.stdin.buffer:
            if line.strip():
                self.take(json.loads(line))

    def take(self, message: Raw) -> None:
        method = message.get("method")
        if method is None:  # an answer to a question of ours
            return
        if "id" not in message:
            if method in self.told:
                self.told[method](self, message)
            return
        handler = self.methods.get(method)
        if handler is None:
            self.refuse(message["id"], -32601, f"there is no {method} here")
            return
        result = handler(self, message)
        if result is not None:
            self.answer(message["id"], result)

    def hello(self, request: Raw) -> Raw:
        info = {"name": self.name, "version": "1"}
        return {"protocolVersion": self.version, "capabilities": self.capabilities, "serverInfo": info}

    def list_tools(self, request: Raw) -> Raw:
        return {"tools": self.tools}

    def call_tool(self, request: Raw) -> Raw | None:
        handler = self.calls.get(request["params"]["name"])
        if handler is None:
            self.refuse(request["id"], -32602, "there is no such tool here")
            return None
        return handler(self, request)

    def answer(self, id: Any, result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "result": result})

    def refuse(self, id: Any, code: int, message: str) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})

    def tell(self, method: str, params: Raw | None = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def ask(self, id: Any, method: str, params: Raw | None = None) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})

    def send(self, message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def text(said: str) -> Raw:
    """The result of a tool that says something."""
    return {"content": [{"type": "text", "text": said}]}


def arguments(request: Raw) -> Raw:
    found: Raw = request["params"].get("arguments") or {}
    return found


def variant() -> str:
    """Which of the ways of a server file is wanted."""
    return sys.argv[1]
