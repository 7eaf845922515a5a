"""Logs: JSON lines with the call they belong to, or a readable form on a terminal."""

import logging
import sys
import time
from typing import Any, TextIO

from app.core.calls import current_call
from app.core.redaction import Redactor
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import dumps


class CallFilter(logging.Filter):
    """Notes which call a line belongs to, unless it brings that along."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "call"):
            record.call = current_call.get()
        return True


class RedactingFormatter(logging.Formatter):
    """Whatever a line says, it says no secret."""

    def __init__(self, form: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self._form = form
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(self._form.format(record))


class JsonFormatter(logging.Formatter):
    """One object per line. A line's own facts (`extra={"facts": …}`) become fields beside the others."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = getattr(record, "facts", {}) | {
            "at": rfc3339(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call := getattr(record, "call", None):
            line["call"] = call
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return dumps(line).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        call = getattr(record, "call", None)
        named = " ".join(call) if isinstance(call, list) else call
        line = f"{at} {record.levelname.lower():7} {record.getMessage()}" + (f"  [{named}]" if named else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str, form: str, redactor: Redactor, stream: TextIO = sys.stderr) -> None:
    """Send everything the process logs, uvicorn's lines too, through one handler."""
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.addFilter(CallFilter())
    handler.setFormatter(RedactingFormatter(TextFormatter() if is_text else JsonFormatter(), redactor))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for chatty in ("uvicorn.access", "uvicorn.error", "alembic", "httpx", "httpx2", "httpcore2", "mcp"):
        logging.getLogger(chatty).setLevel("WARNING")
