"""Logging: JSON lines with the call they belong to, or text on a terminal."""

import logging
import sys
import time
from typing import Any, TextIO

from app.core.calls import current_call
from app.core.redaction import Redactor
from app.core.util.clocks import rfc3339
from app.core.util.json_codec import dumps


class CallFilter(logging.Filter):
    """Adds the current call to a record that has none."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "call"):
            record.call = current_call.get()
        return True


class RedactingFormatter(logging.Formatter):
    """Redacts secrets in formatted lines."""

    def __init__(self, formatter: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self._formatter = formatter
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(self._formatter.format(record))


class JsonFormatter(logging.Formatter):
    """One object per line. `extra={"facts": {...}}` adds fields."""

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
        calls = " ".join(call) if isinstance(call, list) else call
        line = f"{at} {record.levelname.lower():7} {record.getMessage()}" + (f"  [{calls}]" if calls else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str, log_format: str, redactor: Redactor, stream: TextIO = sys.stderr) -> None:
    """Send all log records of the process, including uvicorn's, through one handler."""
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
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
    for verbose in ("uvicorn.access", "uvicorn.error", "alembic", "httpx", "httpx2", "httpcore2", "mcp"):
        logging.getLogger(verbose).setLevel("WARNING")
