"""`python calls.py`: one server with a tool for every way to answer a call badly. `echo` answers well.

`python calls.py junk` writes what is no message before each message and after it.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

if (root := str(Path(__file__).resolve().parents[3])) not in sys.path:
    sys.path[0] = root  # instead of this folder

from tests.mcp.hostile.rpc import READS, Raw, Server, arguments, text

MB = 1024 * 1024
JUNK = (
    b'Starting server...\n\n   \n\r\n\x00\xff\xfe not even text\n{\n]\ntrue\n17\nnull\n"text"\n{}\n'
    b'{"jsonrpc": "2.0"}\n{"jsonrpc": "1.0", "method": 5}\n{"id": 987654}\n{"jsonrpc": "2.0", "id": 987654}\n'
    b'{"jsonrpc": "2.0", "id": {}, "result": {}}\n{"jsonrpc": "2.0", "id": "unknown", "result": {}}\n'
    b'{"jsonrpc": "2.0", "method": "notifications/unheard-of"}\n'
    b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "nobody", "progress": "?"}}\n'
)
NESTED = 100_000


class Junky(Server):
    """Nothing it says stands alone."""

    def write(self, data: bytes) -> None:
        super().write(JUNK + data + JUNK)


def exit_(server: Server, request: Raw) -> None:
    os._exit(int(arguments(request).get("code", 7)))


def kill(server: Server, request: Raw) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half(server: Server, request: Raw) -> None:
    """Dies in the middle of its answer."""
    server.write(b'{"jsonrpc": "2.0", "id": ' + json.dumps(request["id"]).encode() + b', "result": {"content": [')
    os._exit(0)


def never(server: Server, request: Raw) -> None:
    """Says nothing, and goes on with other calls."""


def sleeps(server: Server, request: Raw) -> Raw:
    """Does nothing else meanwhile; longer than anybody waits unless told otherwise."""
    time.sleep(float(arguments(request).get("seconds", 3600)))
    return text("slept well")


def late(server: Server, request: Raw) -> None:
    """Answers after a while, and goes on with other calls."""

    def answer() -> None:
        server.answer(request["id"], text("better late than never"))

    threading.Timer(float(arguments(request).get("seconds", 0.5)), answer).start()


def twice(server: Server, request: Raw) -> None:
    server.answer(request["id"], text("first"))
    server.answer(request["id"], text("second"))
    server.refuse(request["id"], -32603, "third")


def wrong_id(server: Server, request: Raw) -> None:
    """Ids that nobody gave out, and the right one in a wrapping."""
    id = request["id"]
    for wrong in (10**12, -1, None, "nobody", f"{id}x", [id], {"id": id}, 0.5, [], {}):
        server.answer(wrong, text("not yours"))


def closes_output(server: Server, request: Raw) -> None:
    """Lives on, and can say nothing any more."""
    os.close(1)
    time.sleep(3600)


def big(server: Server, request: Raw) -> Raw:
    return text("x" * int(arguments(request).get("bytes", 5 * MB)))


def long_line(server: Server, request: Raw) -> Raw:
    """One message of a hundred megabytes, in pieces."""
    server.write(b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "')
    for _ in range(int(arguments(request).get("mb", 100))):
        server.write(b"x" * MB)
    server.write(b'"}}\n')
    return text("that was all")


def endless_line(server: Server, request: Raw) -> None:
    """A line without an end."""
    while True:
        server.write(b"x" * MB)


def progress(server: Server, request: Raw) -> Raw:
    token = (request["params"].get("_meta") or {}).get("progressToken")
    for number in range(int(arguments(request).get("count", 20_000))):
        message = f"step {number}"
        server.tell("notifications/progress", {"progressToken": token, "progress": number, "message": message})
    return text("at last")


def odd_progress(server: Server, request: Raw) -> Raw:
    """Progress that is none."""
    token = (request["params"].get("_meta") or {}).get("progressToken")
    values: list[Any] = ["half", None, [], {}, True, -5, 1e400]
    tokens: list[Any] = [None, [], {}, "nobody", 10**30]
    params: list[Raw] = [{"progressToken": token, "progress": value} for value in values]
    params += [{"progressToken": value, "progress": 1} for value in tokens]
    params += [{"progressToken": token}, {"progressToken": token, "progress": 1, "total": "all", "message": 7}]
    for one in params:
        server.tell("notifications/progress", one)
    server.send({"jsonrpc": "2.0", "method": "notifications/progress"})
    server.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": [token, 1]})
    return text("at last")


def errors(server: Server, request: Raw) -> Raw:
    """A hundred megabytes on stderr."""
    line = b"something is wrong here, and it is said again and again\n" * 18_724  # a megabyte
    for _ in range(int(arguments(request).get("mb", 100))):
        sys.stderr.buffer.write(line)
    sys.stderr.buffer.write(b"\xff\xfe half a character: \xe6\x97")
    sys.stderr.buffer.flush()
    return text("that was all")


def batch(server: Server, request: Raw) -> None:
    """Messages in arrays: an empty one, one with everything in it, and one around the answer."""
    server.send([])
    server.send([1, None, [], {"jsonrpc": "2.0", "method": "notifications/unheard-of"}])
    server.send([{"jsonrpc": "2.0", "id": request["id"], "result": text("in a batch")}])


def nested(server: Server, request: Raw) -> None:
    """So deep that nobody gets to the bottom."""
    answer = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [], "structuredContent": {"a": ' % (
        json.dumps(request["id"]).encode()
    )
    server.write(answer + b"[" * NESTED + b"]" * NESTED + b"}}}\n")


def numbers(server: Server, request: Raw) -> None:
    """What is no JSON, and what is no number of any machine."""
    answer = '{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "numbers"}], %s}}\n'
    values = '"structuredContent": {"nan": NaN, "inf": -Infinity, "huge": %s, "tiny": 1e-400, "vast": 1e400}'
    server.write((answer % (json.dumps(request["id"]), values % ("9" * 400))).encode())


def endless_number(server: Server, request: Raw) -> None:
    """An integer of more digits than Python turns into a number."""
    answer = '{"jsonrpc": "2.0", "id": %s, "result": {"content": [], "structuredContent": {"huge": %s}}}\n'
    server.write((answer % (json.dumps(request["id"]), "9" * 10_000)).encode())


def surrogates(server: Server, request: Raw) -> None:
    """Half characters, as JSON allows them, and bytes that are no text."""
    answer = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "half \\ud83d here"}]}}\n'
    server.write(answer % json.dumps(request["id"]).encode())


def no_text(server: Server, request: Raw) -> None:
    answer = b'{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "half \xe6\x97 here"}]}}\n'
    server.write(answer % json.dumps(request["id"]).encode())


def shapes(server: Server, request: Raw) -> None:
    """Results that are no results of tools; `number` says which."""
    results: list[Any] = [None, [], "text", 7, {}, {"content": None}, {"content": "text"}, {"content": [7, None, {}]}]
    results += [{"content": [{"type": "unheard-of", "x": 1}]}, {"content": [{"type": "text", "text": 7}]}]
    results += [{"content": [{"type": "image", "data": "@@@", "mimeType": 7}]}, {"content": [], "isError": "yes"}]
    results += [{"content": [{"type": "resource", "resource": None}]}, {"content": [{"type": "resource_link"}]}]
    server.answer(request["id"], results[int(arguments(request)["number"])])


def odd_error(server: Server, request: Raw) -> None:
    """Errors that are no errors; `number` says which."""
    errors: list[Any] = [None, "no", 7, [], {}, {"code": "x"}, {"code": 1, "message": None}, {"message": {"a": 1}}]
    server.send({"jsonrpc": "2.0", "id": request["id"], "error": errors[int(arguments(request)["number"])]})


def elicits(server: Server, request: Raw) -> None:
    """Answers, and asks a person only then: no call is in flight that the question could belong to."""
    server.answer(request["id"], text("asked"))
    schema = {"type": "object", "properties": {"password": {"type": "string"}}}
    server.ask("late", "elicitation/create", {"message": "Your password, please", "requestedSchema": schema})


def samples(server: Server, request: Raw) -> Raw:
    """A thousand questions for a model, and no interest in the answers."""
    message = {"role": "user", "content": {"type": "text", "text": "Say something long."}}
    for number in range(int(arguments(request).get("count", 1000))):
        server.ask(f"sample-{number}", "sampling/createMessage", {"messages": [message], "maxTokens": 100_000})
    return text("asked")


def odd_questions(server: Server, request: Raw) -> Raw:
    """Requests that are none, and methods nobody has."""
    for number, method in enumerate(("elicitation/create", "sampling/createMessage", "roots/list", "unheard-of", "")):
        server.ask(f"odd-{number}", method, {"message": 7, "requestedSchema": "?", "messages": None})
    server.send({"jsonrpc": "2.0", "id": "odd-6", "method": "elicitation/create", "params": [1]})
    server.send({"jsonrpc": "2.0", "id": "odd-7", "method": "roots/list", "params": None})
    server.send({"jsonrpc": "2.0", "id": ["odd-8"], "method": "roots/list"})
    return text("asked")


def changes(server: Server, request: Raw) -> Raw:
    """Says thousands of times that its tools are others now."""
    for _ in range(int(arguments(request).get("count", 20_000))):
        server.tell("notifications/tools/list_changed")
    return text("they changed")


def counts(server: Server, request: Raw) -> Raw:
    """How often it was asked for its tools."""
    return text(str(server.__dict__.get("listed", 0)))


def list_counted(server: Server, request: Raw) -> Raw:
    server.__dict__["listed"] = server.__dict__.get("listed", 0) + 1
    return server.list_tools(request)


TOOLS = (
    *(exit_, kill, half, never, sleeps, late, twice, wrong_id, closes_output, big, long_line, endless_line),
    *(progress, odd_progress, errors, batch, nested, numbers, endless_number, surrogates, no_text, shapes, odd_error),
    *(elicits, samples, odd_questions, changes, counts),
)


def main() -> None:
    server = Junky("junk") if sys.argv[1:] == ["junk"] else Server("calls")
    server.methods["tools/list"] = list_counted
    for tool in TOOLS:
        server.add(tool.__name__.rstrip("_"), tool, annotations=READS if tool in (counts, big) else {})
    if isinstance(server, Junky):
        server.write(b"")
    server.run()


if __name__ == "__main__":
    main()
