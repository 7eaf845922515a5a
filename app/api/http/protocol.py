"""uvicorn's HTTP protocol with limits on what a client can send and how slowly.

    head     at most the allowed bytes and headers, within `read_timeout` of the first byte     431, 414, 408
    body     at least `MIN_BODY_BYTES` in every `read_timeout`                                  408
    after    a response before the end of its request closes the connection

A request that arrives in one read sets no timer. Time in which reading is paused, or in which a response is being sent,
is not counted.
"""

import logging
from asyncio import TimerHandle, Transport
from contextlib import suppress
from enum import Enum, auto
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.http.problems import Problem

log = logging.getLogger(__name__)

MAX_URL_BYTES = 16 * 1024
MAX_PIPELINED = 100
"""Requests that may wait on one connection behind the current one."""
MIN_BODY_BYTES = 16 * 1024
MAX_FRAMING_BYTES = 1024 * 1024
"""Bytes of chunk framing that a body may have, besides a quarter of its own size."""
GRACE_SECONDS = 0.1
LINGER_SECONDS = 2.0
LINGER_BYTES = 16 * 1024 * 1024

MALFORMED = Problem(400, "MalformedRequest", "This is not valid HTTP/1.1.")
UPGRADE = Problem(400, "UpgradeNotSupported", "The service does not speak this protocol; use plain HTTP/1.1.")
SMALL_CHUNKS = Problem(400, "MalformedRequest", "The chunks of the body are too small.")
TOO_MANY = Problem(400, "MalformedRequest", f"More than {MAX_PIPELINED} requests wait on this connection.")
SLOW_HEAD = Problem(408, "RequestTimeout", "The request's headers took too long.")
SLOW_BODY = Problem(408, "RequestTimeout", "The request's body was sent too slowly.")
LONG_URL = Problem(414, "UriTooLong", f"The URL is longer than {MAX_URL_BYTES} bytes.")


class Phase(Enum):
    """What a connection is reading."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()
    OVER = auto()


class Refused(Exception):
    """Stops the parser; holds the response."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class ReadFlow(FlowControl):
    """Remembers whether reading was paused since `was_paused` was last reset."""

    was_paused = False

    def pause_reading(self) -> None:
        self.was_paused = True
        super().pause_reading()


class LingeringClose:
    """The transport of a response whose request is incomplete: closing it lingers (RFC 9112, 9.6)."""

    __slots__ = ("_protocol", "_transport")

    def __init__(self, protocol: "LimitedProtocol", transport: Transport) -> None:
        self._protocol = protocol
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._protocol.linger()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `protocol_of` makes a subclass with the limits."""

    flow: ReadFlow
    header_limit: ClassVar[int]
    header_count: ClassVar[int]
    read_timeout: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ws_protocol_class = None
        self._phase = Phase.BETWEEN
        self._timer: TimerHandle | None = None
        self._read_bytes = 0
        """Bytes of the current read."""
        self._head_read_bytes = 0
        """Bytes of the read in which the head began."""
        self._unused_bytes = 0
        """Bytes read since the parser last used some."""
        self._raw_body_bytes = 0
        self._body = 0
        self._body_bytes_at_timer = 0
        """Bytes of the body when its timer was set."""
        self._keep_alive = True
        self._active: RequestResponseCycle | None = None
        self._queued_problem: Problem | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadFlow(transport)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._unset_keepalive_if_required()
        if self._active is not None and not self._active.response_complete:
            _disconnect(self._active)  # uvicorn only disconnects the latest, which may be queued behind this one
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase is Phase.OVER:
            self._unused_bytes += len(data)  # discarded, up to a limit
            if self._unused_bytes > LINGER_BYTES or self._is_responding():
                self.flow.pause_reading()
            return
        self._read_bytes = len(data)
        self._unused_bytes += len(data)
        if self._phase is Phase.BODY:
            self._raw_body_bytes += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reason = error.__context__
            self._refuse(reason.problem if isinstance(reason, Refused) else MALFORMED)
            return
        if self._unused_bytes or self._phase is not Phase.BETWEEN:
            self._check_incomplete()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.parser.feed_data(self._plain_head() + data[upgrade.args[0] :])

    def _plain_head(self) -> bytes:
        """The head again without its `Upgrade`, with which the parser would not read the body."""
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers if name not in (b"upgrade", b"connection")]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._phase = Phase.HEAD
        self._head_read_bytes = self._read_bytes
        self._unused_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_URL_BYTES:
            raise Refused(LONG_URL)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.BODY:
            return  # a trailer, which must not be taken for a header
        value = value.strip(b" \t")
        if len(self.headers) >= self.header_count:
            raise Refused(self._headers_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        if self._head_read_bytes + self._unused_bytes > self.header_limit and self._head_size() > self.header_limit:
            raise Refused(self._headers_too_large())
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT" or self._get_upgrade() == b"websocket":
                raise Refused(UPGRADE)
            return  # fed again as a request without upgrade
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(TOO_MANY)
        super().on_headers_complete()
        self._phase = Phase.BODY
        self._unused_bytes = self._raw_body_bytes = self._body = 0

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase is not Phase.BODY:
            return
        self._cancel_timer()
        self._phase = Phase.BETWEEN
        self._unused_bytes = 0
        if isinstance(self.cycle.transport, LingeringClose):
            self.cycle.transport = self.transport
            if not self.cycle.response_started:
                self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._phase is not Phase.OVER:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._queued_problem is not None:
            self._send_problem(self._queued_problem)

    def shutdown(self) -> None:
        self._keep_alive = False
        super().shutdown()

    def linger(self) -> None:
        """Close so that the client can read the response: closing with unread data would reset the connection."""
        if self.transport.is_closing():
            return
        self._phase = Phase.OVER
        self._unused_bytes = 0
        self._cancel_timer()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has disconnected already
                self.transport.write_eof()
        self._wait_for_client(self.transport.get_write_buffer_size())

    def _wait_for_client(self, unsent: int) -> None:
        self._timer = self.loop.call_later(LINGER_SECONDS, self._abort_unless_reading, unsent)

    def _abort_unless_reading(self, unsent: int) -> None:
        still_unsent = self.transport.get_write_buffer_size()
        if 0 < still_unsent < unsent:
            self._wait_for_client(still_unsent)
        else:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _check_incomplete(self) -> None:
        """A request is incomplete: refuse it when it is too large already, else set a timer."""
        if self._unused_bytes > self.header_limit:
            self._refuse(self._headers_too_large())
            return
        if self._phase is Phase.BODY and self._raw_body_bytes - self._body > MAX_FRAMING_BYTES + self._body // 4:
            self._refuse(SMALL_CHUNKS)
            return
        if self._phase is Phase.BODY and not isinstance(self.cycle.transport, LingeringClose):
            self._keep_alive = self.cycle.keep_alive
            self.cycle.keep_alive = False  # unless the rest arrives before the response
            self.cycle.transport = LingeringClose(self, self.transport)  # type: ignore[assignment]
        if self._timer is None and (self._phase is not Phase.BETWEEN or not self._is_responding()):
            self._set_timer()

    def _set_timer(self) -> None:
        self._body_bytes_at_timer = self._body
        self.flow.was_paused = self.flow.read_paused
        self._timer = self.loop.call_later(self.read_timeout, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """Time is up; but if the event loop was busy, data that has arrived is still to be read."""
        self._timer = self.loop.call_later(GRACE_SECONDS, self._check_progress)

    def _check_progress(self) -> None:
        self._timer = None
        if self.flow.was_paused or (self._phase is Phase.BODY and self._has_progress()):
            self._set_timer()
        elif self._phase is Phase.HEAD:
            self._refuse(SLOW_HEAD)
        elif self._phase is Phase.BODY:
            self._refuse(SLOW_BODY)
        elif not self._is_responding():
            self.transport.close()

    def _has_progress(self) -> bool:
        return self._body - self._body_bytes_at_timer >= MIN_BODY_BYTES or self.cycle.response_started

    def _is_responding(self) -> bool:
        return self._active is not None and not self._active.response_complete and not self._active.disconnected

    def _refuse(self, problem: Problem) -> None:
        """Send this response after those that are still due, and close the connection."""
        host = self.client[0] if self.client else "unix"
        log.info("refused a request from %s: %d %s", host, problem.status, problem.code)
        to_send: Problem | None = problem
        if self._phase is Phase.BODY:
            if self.cycle is not self._active:
                self.pipeline.popleft()  # it would wait for a body that never arrives
            elif self.cycle.response_started:
                to_send = None  # its response has started and continues
            else:
                _disconnect(self.cycle)
        self._phase = Phase.OVER
        self._cancel_timer()
        if self._is_responding():
            self._queued_problem = to_send
            self.flow.pause_reading()
        elif to_send is not None:
            self._send_problem(to_send)

    def _send_problem(self, problem: Problem) -> None:
        self._queued_problem = None
        response = problem.response()
        lines = [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
        lines += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        head = b"".join([STATUS_LINE[problem.status], *lines, b"connection: close\r\n\r\n"])
        self.transport.write(head + bytes(response.body))
        self.linger()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _headers_too_large(self) -> Problem:
        return Problem(
            431,
            "HeadersTooLarge",
            f"A request may have {self.header_count} headers of {self.header_limit} bytes in all.",
        )


def protocol_of(header_limit: int, header_count: int, read_timeout: float) -> type[LimitedProtocol]:
    """The protocol with these limits, as `uvicorn.Config(http=...)` takes it."""
    limits = {"header_limit": header_limit, "header_count": header_count, "read_timeout": read_timeout}
    return type("Protocol", (LimitedProtocol,), limits)


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
