"""A JSON-RPC 2.0 peer: sends requests over a transport and matches the answers, in whatever order they arrive.

Messages are handled in their order and without a task of their own; only requests of the server get one.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Unpack

from pydantic_core import from_json

from app.core.tools import Context
from app.core.util.json_codec import Raw
from app.mcp.client.interfaces import (
    ConnectionLost,
    JsonRpcError,
    Log,
    OnProgress,
    RequestNotSent,
    RequestOptions,
    ServerRequestHandler,
)

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
NOT_CANCELABLE = frozenset({"initialize", "server/discover"})
MAX_SERVER_REQUESTS = 64
"""Requests of a server that are answered at the same time."""
MAX_BACKGROUND_SENDS = 256
"""Answers and notifications that wait to be sent; a server that does not read them gets no more."""
MAX_EXCERPT = 200
EDGE_BYTES = 256
VERSION = rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
ID_FIRST = re.compile(rb"\s*\{\s*" + VERSION + rb'"id"\s*:\s*(\d{1,18})\s*,\s*"result"')
ID_LAST = re.compile(rb"\}\s*,\s*" + VERSION + rb'"id"\s*:\s*(\d{1,18})\s*\}\s*$')
"""How most programs begin or end an answer."""

OnNotification = Callable[[str, Raw], None]


class Transport:
    """Sends messages to a server, and passes what arrives to the peer. Most transports need only some of these."""

    async def send(self, message: Raw) -> None:
        """Send a message or queue it; waits while the queue is full. Raises `ConnectionLost`."""
        raise NotImplementedError

    def discard(self, number: int) -> bool:
        """The answer to this request is not needed any more. True: the server need not be notified."""
        return False

    def set_protocol_version(self, version: str | None) -> None:
        """Use this version from now on; None while it is negotiated."""

    def start(self) -> None:
        """The handshake is done."""

    def set_tools(self, tools: Any) -> None:
        """A page of `tools/list`: some tools want arguments repeated in headers."""


@dataclass(slots=True)
class _PendingRequest:
    """A request to the server that is not answered yet."""

    method: str
    answer: "asyncio.Future[Raw]"
    on_progress: OnProgress | None
    ctx: Context | None
    on_notification: OnNotification | None


class JsonRpcPeer:
    """The server at the other end of a transport. `lost` is done when the connection has ended.

    `late_answers` counts the answers to requests that were not pending any more.
    """

    def __init__(self, handler: ServerRequestHandler, server_log: Log) -> None:
        self._handler = handler
        self._log = server_log
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.late_answers = 0
        self._last_number = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._server_requests: dict[int | str, asyncio.Task[None]] = {}
        self._background_sends: set[asyncio.Task[None]] = set()
        self.transport: Transport

    async def request(
        self,
        method: str,
        params: Raw | None = None,
        *,
        on_notification: OnNotification | None = None,
        **options: Unpack[RequestOptions],
    ) -> Raw:
        """As `Connection.request`. `on_notification` gets the notifications of a subscription."""
        if self.lost.done():
            raise RequestNotSent(self.lost.result())
        self._last_number = number = self._last_number + 1
        on_progress = options.get("on_progress")
        if on_progress is not None:
            params = params or {}
            params = params | {"_meta": (params.get("_meta") or {}) | {"progressToken": number}}
        message: Raw = {"jsonrpc": "2.0", "id": number, "method": method}
        if params is not None:
            message["params"] = params
        answer: asyncio.Future[Raw] = self._loop.create_future()
        pending = _PendingRequest(method, answer, on_progress, options.get("ctx"), on_notification)
        self._pending[number] = pending
        timeout = options.get("timeout")
        try:
            if timeout is None:  # the usual case: calls have a time limit of their own
                await self.transport.send(message)
                return await answer
            async with asyncio.timeout(timeout):
                await self.transport.send(message)
                return await answer
        except (asyncio.CancelledError, TimeoutError) as end:
            self._cancel_request(number, pending, "timed out" if isinstance(end, TimeoutError) else "canceled")
            raise
        finally:
            del self._pending[number]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # marks it as retrieved, also where another error came first

    async def notify(self, method: str, params: Raw | None = None) -> None:
        if self.lost.done():
            raise RequestNotSent(self.lost.result())
        message: Raw = {"jsonrpc": "2.0", "method": method}
        await self.transport.send(message if params is None else message | {"params": params})

    def is_pending(self, number: int) -> bool:
        pending = self._pending.get(number)
        return pending is not None and not pending.answer.done()

    def receive(self, data: bytes, stream_of: int | None = None) -> None:
        """Handle a message; `stream_of` is the request on whose own stream it arrived. An invalid one is skipped."""
        try:
            message = parse_json(data)
        except (ValueError, RecursionError):
            self._log_unexpected("not JSON", data)
            self.reject_unreadable(data[:EDGE_BYTES], data[-EDGE_BYTES:], "its answer cannot be read.")
            return
        for one in message if isinstance(message, list) else (message,):
            try:
                self._dispatch(one, stream_of)
            except Exception:
                log.exception("a message of an MCP server could not be handled")

    def reject_unreadable(self, first: bytes, last: bytes, why: str) -> None:
        """A message with these first and last bytes cannot be read. If it is the answer to a pending request by its
        id, that request fails."""
        if b'"method"' not in first and (match := ID_FIRST.match(first) or ID_LAST.search(last)):
            self.fail(int(match[1]), JsonRpcError(PARSE_ERROR, why))

    def fail(self, number: int, error: Exception) -> None:
        """There will be no answer to this request."""
        if self.is_pending(number):
            self._pending[number].answer.set_exception(error)

    def close_with(self, reason: str, unsent: Collection[int] = ()) -> None:
        """The connection has ended. The server has received nothing of the `unsent` requests."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        for number in list(self._pending):
            self.fail(number, RequestNotSent(reason) if number in unsent else ConnectionLost(reason))
        for task in (*self._server_requests.values(), *self._background_sends):
            task.cancel()

    async def close(self) -> None:
        self.close_with("The connection was closed.")
        if tasks := {*self._server_requests.values(), *self._background_sends}:
            await asyncio.wait(tasks)

    def _cancel_request(self, number: int, pending: _PendingRequest, reason: str) -> None:
        if pending.answer.done() and not pending.answer.cancelled():
            return
        if self.transport.discard(number) or pending.method in NOT_CANCELABLE or self.lost.done():
            return
        params = {"requestId": number, "reason": reason}
        self._send_in_background({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _dispatch(self, message: Any, stream_of: int | None) -> None:
        if not isinstance(message, dict):
            self._log_unexpected("not a JSON-RPC message", message)
            return
        method = message.get("method")
        if isinstance(method, str):
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            if message.get("id") is None:
                self._on_notification(method, params, stream_of)
            else:
                self._on_request(message["id"], method, params, stream_of)
        elif "result" in message or "error" in message:
            self._on_answer(message, stream_of)
        else:
            self._log_unexpected("not a JSON-RPC message", message)

    def _on_answer(self, message: Raw, stream_of: int | None) -> None:
        """An answer that is late, repeated or not requested is dropped."""
        number = _request_number(message.get("id"))
        if number is None and stream_of is not None and message.get("id") is None:
            number = stream_of  # the server rejected the request before it read the id
        pending = self._pending.get(number) if number is not None else None
        if pending is None or pending.answer.done():
            self.late_answers += 1
            return
        result = message.get("result")
        if message.get("error") is not None:
            pending.answer.set_exception(to_error(message["error"]))
        elif isinstance(result, dict):
            pending.answer.set_result(result)
        else:
            error = JsonRpcError(INTERNAL_ERROR, f"The result of {pending.method} is not an object.")
            pending.answer.set_exception(error)

    def _on_notification(self, method: str, params: Raw, stream_of: int | None) -> None:
        if method == "notifications/progress":
            self._on_progress(params)
            return
        if method == "notifications/cancelled":
            self._on_cancelled(params.get("requestId"))
            return
        meta = params.get("_meta")
        number = _request_number(meta.get(SUBSCRIPTION)) if isinstance(meta, dict) else None
        pending = self._pending.get(number if number is not None else stream_of or 0)
        if pending is not None and pending.on_notification is not None:
            pending.on_notification(method, params)
        else:
            self._handler.on_notification(method, params, pending.ctx if pending else None)

    def _on_progress(self, params: Raw) -> None:
        number, progress = _request_number(params.get("progressToken")), _float_or_none(params.get("progress"))
        pending = self._pending.get(number) if number is not None else None
        if pending is None or pending.on_progress is None or pending.answer.done() or progress is None:
            return
        message = params.get("message")
        pending.on_progress(
            progress, _float_or_none(params.get("total")), message if isinstance(message, str) else None
        )

    def _on_cancelled(self, id: Any) -> None:
        """The server cancels its own request, or reports that a subscription has ended."""
        if isinstance(id, int | str) and (task := self._server_requests.get(id)) is not None:
            task.cancel()
            return
        number = _request_number(id)
        if number is not None and (pending := self._pending.get(number)) is not None and pending.on_notification:
            self.fail(number, ConnectionLost("The server ended the subscription."))

    def _on_request(self, id: Any, method: str, params: Raw, stream_of: int | None) -> None:
        if type(id) not in (int, str):
            self._log_unexpected("not a JSON-RPC message", {"id": id, "method": method})
            return
        if len(self._server_requests) >= MAX_SERVER_REQUESTS or id in self._server_requests:
            error = JsonRpcError(INTERNAL_ERROR, "Too many requests at once, or two with the same id.")
            self._send_in_background(_error_response(id, error))
            return
        pending = self._pending.get(stream_of) if stream_of is not None else None
        task = self._loop.create_task(self._answer(id, method, params, pending.ctx if pending else None))
        self._server_requests[id] = task
        task.add_done_callback(lambda _: self._server_requests.pop(id))

    async def _answer(self, id: int | str, method: str, params: Raw, ctx: Context | None) -> None:
        message: Raw
        try:
            result = {} if method == "ping" else await self._handler.on_request(method, params, ctx)
            message = {"jsonrpc": "2.0", "id": id, "result": result}
        except JsonRpcError as error:
            message = _error_response(id, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            message = _error_response(id, JsonRpcError(INTERNAL_ERROR, "The client canceled it."))
        except Exception:
            log.exception("a request of an MCP server (%s) could not be answered", method)
            message = _error_response(id, JsonRpcError(INTERNAL_ERROR, "Internal error."))
        await self._send_or_log(message)

    def _send_in_background(self, message: Raw) -> None:
        if len(self._background_sends) >= MAX_BACKGROUND_SENDS:
            self._log.write("The server does not read its input; an answer was dropped.\n")
            return
        task = self._loop.create_task(self._send_or_log(message))
        self._background_sends.add(task)
        task.add_done_callback(self._background_sends.discard)

    async def _send_or_log(self, message: Raw) -> None:
        try:
            await self.transport.send(message)
        except (ConnectionLost, JsonRpcError) as error:
            self._log.write(f"An answer could not be sent to the server: {error}\n")

    def _log_unexpected(self, what: str, message: Any) -> None:
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else repr(message)
        rest = "…" if len(text) > MAX_EXCERPT else ""
        self._log.write(f"The server wrote something that is {what}: {text[:MAX_EXCERPT].rstrip()}{rest}\n")


def parse_json(data: bytes) -> Any:
    """Also accepts what strict parsers refuse and some programs write: lone surrogates are replaced."""
    try:
        return from_json(data)
    except ValueError:
        text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def to_error(error: Any) -> JsonRpcError:
    """The `error` of a response, whatever the server put there."""
    if not isinstance(error, dict):
        return JsonRpcError(INTERNAL_ERROR, str(error) or "The server failed.")
    code, message = error.get("code"), error.get("message")
    return JsonRpcError(
        code if type(code) is int else INTERNAL_ERROR,
        message if isinstance(message, str) and message else "The server failed and gave no message.",
        error.get("data"),
    )


def _request_number(id: Any) -> int | None:
    """The number of one of our requests; some servers return it as a string."""
    if type(id) is int:
        return id
    if isinstance(id, str) and id.isascii() and id.isdigit() and len(id) < 20:
        return int(id)
    return int(id) if isinstance(id, float) and id.is_integer() else None


def _float_or_none(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _error_response(id: int | str, error: JsonRpcError) -> Raw:
    body: Raw = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": body}
