"""The access log: one line for each request, when it has been answered, with the calls it was about.

Only the path is told, never the query, which may hold a ticket. A stream is
told when it ends.
"""

import logging
import re
import time
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core.calls import CALLS_IN_SCOPE

log = logging.getLogger(__name__)

LONGEST_PATH = 512
_UNSAFE = re.compile(r"[^!-~]")
_CALL = re.compile(r"/v1/calls/(call_[0-9a-f]+)(?:/|$)")


class AccessLog:
    """Watches requests from outside of everything that answers them."""

    @property
    def is_on(self) -> bool:
        return log.isEnabledFor(logging.INFO)

    async def follow(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request be answered, and tell how that went however it ended."""
        started = time.monotonic()
        status: int | None = None
        size = 0
        scope[CALLS_IN_SCOPE] = []

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await answer(scope, receive, sending)
        except Exception:
            status = status or 500  # what the server answers when nobody else did
            raise
        finally:
            _tell(scope, status, size, time.monotonic() - started)


def _tell(scope: Scope, status: int | None, size: int, seconds: float) -> None:
    method, path = scope["method"], _path(scope)
    client = scope["client"][0] if scope.get("client") else None
    ms = round(seconds * 1000, 1)
    facts = {"method": method, "path": path, "status": status, "ms": ms, "bytes": size, "client": client}
    said = f"{client or '-'} {method} {path} {status or '-'} {size} B {ms} ms"
    extra = {"call": _calls(scope, path), "facts": facts}
    # Made by hand, because looking up who logs costs more than the rest of the line.
    log.handle(log.makeRecord(log.name, logging.INFO, __file__, 0, said, (), None, extra=extra))


def _path(scope: Scope) -> str:
    """The path as it was sent. What could break a line or colour a terminal is escaped."""
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    if len(path) > LONGEST_PATH:
        path = path[:LONGEST_PATH] + "..."
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", path)


def _calls(scope: Scope, path: str) -> Any:
    """The calls this request made, or the one its path names."""
    noted: list[str] = scope[CALLS_IN_SCOPE]
    if not noted and (named := _CALL.match(path)):
        return named[1]
    return noted[0] if len(noted) == 1 else noted or None
