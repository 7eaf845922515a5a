"""Peers: JSON-RPC 2.0 over a wire, both ways. Who asks gets the answer to its own question, whatever else comes.

What comes is taken as it is and in its order, without a task of its own: only what the server asks of us gets one.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import (
    ConnectionLost,
    JsonRpcError,
    Log,
    OnProgress,
    RequestNotSent,
    ServerRequestHandler,
)

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
NOT_CANCELABLE = frozenset({"initialize", "server/discover"})
MOST_ASKED = 64
"""Most requests of a server that are answered at once."""
MOST_ERRANDS = 256
"""Most answers and notices of ours on their way; a server that does not take them gets no more."""
EXCERPT = 200
EDGE = 256
VERSION = rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
ID_FIRST = re.compile(rb"\s*\{\s*" + VERSION + rb'"id"\s*:\s*(\d{1,18})\s*,\s*"result"')
ID_LAST = re.compile(rb"\}\s*,\s*" + VERSION + rb'"id"\s*:\s*(\d{1,18})\s*\}\s*$')
"""How most programs begin or end an answer."""

OnTold = Callable[[str, Raw], None]


class Transport(Protocol):
    """Brings messages to a server. What comes back is told to the peer."""

    async def send(self, message: Raw) -> None:
        """Bring one over, or at least on its way. It waits while too much is. Raises `ConnectionLost`."""
        ...

    def drop(self, number: int) -> bool:
        """Nobody waits for the answer to this request any more. Whether the server need not be told of it."""
        ...

    def speak(self, version: str | None) -> None:
        """From now on it is this version of the protocol; None: that is just being settled."""
        ...

    def begin(self) -> None:
        """Hello was said."""
        ...

    def learn(self, listed: Any) -> None:
        """Tools as the server listed them: some want it to be said beside a call what it is about."""
        ...


@dataclass(slots=True)
class _PendingRequest:
    """A request of ours that is not answered yet."""

    method: str
    answer: "asyncio.Future[Raw]"
    on_progress: OnProgress | None
    about: Context | None
    on_told: OnTold | None


class JsonRpcPeer:
    """The other side of a wire. `lost` is done when the connection is over.

    `surplus` counts the answers nobody waited for any more.
    """

    def __init__(self, guest: ServerRequestHandler, journal: Log) -> None:
        self._guest = guest
        self._log = journal
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.surplus = 0
        self._number = 0
        self._asked: dict[int, _PendingRequest] = {}
        self._answering: dict[int | str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self.wire: Transport

    async def request(
        self,
        method: str,
        params: Raw | None = None,
        *,
        seconds: float | None = None,
        on_progress: OnProgress | None = None,
        about: Context | None = None,
        on_told: OnTold | None = None,
    ) -> Raw:
        """As `Link.request`. `on_told` gets what a subscription tells instead of the guest."""
        if self.lost.done():
            raise RequestNotSent(self.lost.result())
        self._number = number = self._number + 1
        if on_progress is not None:
            params = params or {}
            params = params | {"_meta": (params.get("_meta") or {}) | {"progressToken": number}}
        message: Raw = {"jsonrpc": "2.0", "id": number, "method": method}
        if params is not None:
            message["params"] = params
        asked = _PendingRequest(method, self._loop.create_future(), on_progress, about, on_told)
        self._asked[number] = asked
        try:
            if seconds is None:
                return await self._ask(message, asked)
            async with asyncio.timeout(seconds):
                return await self._ask(message, asked)
        except (asyncio.CancelledError, TimeoutError) as end:
            self._give_up(number, asked, "timed out" if isinstance(end, TimeoutError) else "canceled")
            raise
        finally:
            del self._asked[number]
            if not asked.answer.cancel() and not asked.answer.cancelled():
                asked.answer.exception()  # it is known, also where something else came first

    async def _ask(self, message: Raw, asked: _PendingRequest) -> Raw:
        await self.wire.send(message)
        return await asked.answer

    async def notify(self, method: str, params: Raw | None = None) -> None:
        if self.lost.done():
            raise RequestNotSent(self.lost.result())
        message: Raw = {"jsonrpc": "2.0", "method": method}
        await self.wire.send(message if params is None else message | {"params": params})

    def is_waiting(self, number: int) -> bool:
        """Whether somebody waits for the answer to this request."""
        asked = self._asked.get(number)
        return asked is not None and not asked.answer.done()

    def hear(self, data: bytes, of: int | None = None) -> None:
        """A message as it came; `of` is the request whose own stream it came on. What is none costs only itself."""
        try:
            message = parsed(data)
        except (ValueError, RecursionError):
            self._note("no JSON", data)
            self.misheard(data[:EDGE], data[-EDGE:], "its answer cannot be read.")
            return
        for one in message if isinstance(message, list) else (message,):
            try:
                self._take(one, of)
            except Exception:
                log.exception("a message of an MCP server could not be taken")

    def misheard(self, first: bytes, last: bytes, why: str) -> None:
        """Nobody can read this message, of which these are the first and the last bytes. Who waits for it is told, if
        it can be seen whose answer it is."""
        if b'"method"' not in first and (found := ID_FIRST.match(first) or ID_LAST.search(last)):
            self.fail(int(found[1]), JsonRpcError(PARSE_ERROR, why))

    def fail(self, number: int, error: Exception) -> None:
        """There will be no answer to this request."""
        asked = self._asked.get(number)
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(error)

    def lose(self, sentence: str, unsent: Collection[int] = ()) -> None:
        """The connection is over. Of `unsent` requests the server has seen nothing."""
        if self.lost.done():
            return
        self.lost.set_result(sentence)
        for number in list(self._asked):
            self.fail(number, RequestNotSent(sentence) if number in unsent else ConnectionLost(sentence))
        for task in (*self._answering.values(), *self._errands):
            task.cancel()

    async def close(self) -> None:
        """End what is under way."""
        self.lose("The connection was closed.")
        if tasks := {*self._answering.values(), *self._errands}:
            await asyncio.wait(tasks)

    def _give_up(self, number: int, asked: _PendingRequest, reason: str) -> None:
        if asked.answer.done() and not asked.answer.cancelled():
            return
        if self.wire.drop(number) or asked.method in NOT_CANCELABLE or self.lost.done():
            return
        params = {"requestId": number, "reason": reason}
        self._run_errand({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _take(self, message: Any, of: int | None) -> None:
        if not isinstance(message, dict):
            self._note("no message", message)
            return
        method = message.get("method")
        if isinstance(method, str):
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            if message.get("id") is None:
                self._told(method, params, of)
            else:
                self._asks(message["id"], method, params, of)
        elif "result" in message or "error" in message:
            self._answered(message, of)
        else:
            self._note("no message", message)

    def _answered(self, message: Raw, of: int | None) -> None:
        """One that is late, doubled or not asked for is dropped."""
        number = _number(message.get("id"))
        if number is None and of is not None and message.get("id") is None:
            number = of  # it was refused before its number was read
        asked = self._asked.get(number) if number is not None else None
        if asked is None or asked.answer.done():
            self.surplus += 1
            return
        result = message.get("result")
        if message.get("error") is not None:
            asked.answer.set_exception(said(message["error"]))
        elif isinstance(result, dict):
            asked.answer.set_result(result)
        else:
            asked.answer.set_exception(JsonRpcError(INTERNAL_ERROR, f"The answer to {asked.method} is no object."))

    def _told(self, method: str, params: Raw, of: int | None) -> None:
        if method == "notifications/progress":
            self._progressed(params)
            return
        if method == "notifications/cancelled":
            self._taken_back(params.get("requestId"))
            return
        meta = params.get("_meta")
        number = _number(meta.get(SUBSCRIPTION)) if isinstance(meta, dict) else None
        asked = self._asked.get(number if number is not None else of or 0)
        if asked is not None and asked.on_told is not None:
            asked.on_told(method, params)
        else:
            self._guest.told(method, params, asked.about if asked else None)

    def _progressed(self, params: Raw) -> None:
        number, progress = _number(params.get("progressToken")), _figure(params.get("progress"))
        asked = self._asked.get(number) if number is not None else None
        if asked is None or asked.on_progress is None or asked.answer.done() or progress is None:
            return
        words = params.get("message")
        asked.on_progress(progress, _figure(params.get("total")), words if isinstance(words, str) else None)

    def _taken_back(self, id: Any) -> None:
        """The server wants no answer any more, or says that a subscription has ended."""
        if isinstance(id, int | str) and (task := self._answering.get(id)) is not None:
            task.cancel()
            return
        number = _number(id)
        if number is not None and (asked := self._asked.get(number)) is not None and asked.on_told is not None:
            self.fail(number, ConnectionLost("The server ended the subscription."))

    def _asks(self, id: Any, method: str, params: Raw, of: int | None) -> None:
        if type(id) not in (int, str):
            self._note("no message", {"id": id, "method": method})
            return
        if len(self._answering) >= MOST_ASKED or id in self._answering:
            self._run_errand(_failed(id, INTERNAL_ERROR, "Too many requests at once, or two with the same id."))
            return
        asked = self._asked.get(of) if of is not None else None
        task = self._loop.create_task(self._answer(id, method, params, asked.about if asked else None))
        self._answering[id] = task
        task.add_done_callback(lambda _: self._answering.pop(id))

    async def _answer(self, id: int | str, method: str, params: Raw, about: Context | None) -> None:
        message: Raw
        try:
            result = {} if method == "ping" else await self._guest.asked(method, params, about)
            message = {"jsonrpc": "2.0", "id": id, "result": result}
        except JsonRpcError as no:
            message = _failed(id, no.code, no.message, no.data)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            message = _failed(id, INTERNAL_ERROR, "It was canceled here.")
        except Exception:
            log.exception("what an MCP server asked (%s) could not be answered", method)
            message = _failed(id, INTERNAL_ERROR, "Internal error.")
        await self._say(message)

    def _run_errand(self, message: Raw) -> None:
        """Send something nobody waits for."""
        if len(self._errands) >= MOST_ERRANDS:
            self._log.write("The server does not take what is sent to it; an answer was left out.\n")
            return
        task = self._loop.create_task(self._say(message))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _say(self, message: Raw) -> None:
        try:
            await self.wire.send(message)
        except (ConnectionLost, JsonRpcError) as error:
            self._log.write(f"An answer could not be brought to the server: {error}\n")

    def _note(self, what: str, message: Any) -> None:
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else repr(message)
        rest = "…" if len(text) > EXCERPT else ""
        self._log.write(f"The server wrote what is {what}: {text[:EXCERPT].rstrip()}{rest}\n")


def parsed(data: bytes) -> Any:
    """What some programs write and strict readers refuse is read all the same: half a character becomes a whole one."""
    try:
        return from_json(data)
    except ValueError:
        text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _number(id: Any) -> int | None:
    """The number of a request of ours; some servers echo it as text."""
    if type(id) is int:
        return id
    if isinstance(id, str) and id.isascii() and id.isdigit() and len(id) < 20:
        return int(id)
    return int(id) if isinstance(id, float) and id.is_integer() else None


def _figure(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def said(error: Any) -> JsonRpcError:
    if not isinstance(error, dict):
        return JsonRpcError(INTERNAL_ERROR, str(error) or "It failed.")
    code, message = error.get("code"), error.get("message")
    return JsonRpcError(
        code if type(code) is int else INTERNAL_ERROR,
        message if isinstance(message, str) and message else "It failed, and the server says no more.",
        error.get("data"),
    )


def _failed(id: int | str, code: int, message: str, data: Any = None) -> Raw:
    error: Raw = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": error}
