"""Results of terminal tools: the output since the last call, cut to a number of tokens in its middle."""

import secrets
from typing import Any

from app.core.errors import CallError, ProgramFailed, ResourceLimit
from app.core.results import Result
from app.core.terminals import Collected
from app.core.util.head_tail import encoded, tail_start, whole_characters

BYTES_PER_TOKEN = 4
MAX_TOKENS = 25_000
"""The limit for any output, whatever the call asks for."""
LIMITS = {"memory": "exceeded its memory limit", "processes": "exceeded its limit of processes"}


def token_count(size: int) -> int:
    """About how many tokens this number of bytes is."""
    return -(-size // BYTES_PER_TOKEN)


def cut_tokens(text: str, limit: int, *, omitted: int = 0) -> str:
    """At most about `limit` tokens, half from the beginning and half from the end, with a mark between them.

    `omitted` is the number of bytes that are missing in the middle already.
    """
    data = encoded(text)
    room = max(limit, 0) * BYTES_PER_TOKEN
    if len(data) <= room:
        return text
    head, tail = whole_characters(data, room // 2), tail_start(data, room - room // 2)
    missing = token_count(tail - head + omitted)
    return f"{data[:head].decode()}…{missing} tokens truncated…{data[tail:].decode()}"


def terminal_result(collected: Collected, *, terminal: int, title: str, seconds: float, limit: int) -> Result:
    """The result for a process that still runs or exited with 0; otherwise it is raised within the error."""
    text = cut_tokens(collected.text, min(limit, MAX_TOKENS), omitted=collected.omitted)
    is_cut = text != collected.text
    count, ended = token_count(collected.size), collected.ended
    structured: dict[str, Any] = {
        "session_id": terminal if ended is None else None,
        "exit_code": None if ended is None else ended.code,
        "output": text,
        "wall_time": round(seconds, 4),
        "original_token_count": count,
    }
    warning = [
        f"Warning: truncated output (original token count: {count})",
        f"Total output lines: {collected.lines}",
        "",
    ]
    sizes = {"truncated": is_cut, "original_size": collected.size, "truncated_size": len(encoded(text))}
    result = Result(
        output="\n".join([*_head(structured), *(warning if is_cut else []), text]),
        title=title,
        metadata={name: structured[name] for name in ("session_id", "exit_code", "wall_time")} | sizes,
        structured=structured,
    )
    if error := _failure(collected, result):
        raise error
    return result


def _head(structured: dict[str, Any]) -> list[str]:
    code, terminal = structured["exit_code"], structured["session_id"]
    return [
        f"Chunk ID: {secrets.token_hex(3)}",
        f"Wall time: {structured['wall_time']:.4f} seconds",
        f"Process running with session ID {terminal}" if code is None else f"Process exited with code {code}",
        f"Original token count: {structured['original_token_count']}",
        "Output:",
    ]


def _failure(collected: Collected, result: Result) -> CallError | None:
    if collected.ended is None:
        return None
    code, limit = collected.ended
    if limit is not None:
        details = {"exit_code": code, "limit": limit}
        return ResourceLimit(f"The command {LIMITS[limit]} and was ended.", details=details, result=result)
    return ProgramFailed(code, f"The command ended with exit code {code}.", result=result) if code else None
