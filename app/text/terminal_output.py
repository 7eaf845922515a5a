"""Chunks: what a terminal wrote since it was last asked, as a model is told of it.

Output cut to so many tokens: its beginning and its end, with what is missing between them.
"""

import secrets
from typing import Any

from app.core.errors import CallError, ProgramFailed, ResourceLimit
from app.core.results import Result
from app.core.terminals import Collected
from app.core.util.head_tail import encoded, whole_characters

BYTES_A_TOKEN = 4


def tokens(size: int) -> int:
    """How many tokens so many bytes are about."""
    return -(-size // BYTES_A_TOKEN)


def cut(text: str, limit: int, *, omitted: int = 0) -> str:
    """At most about `limit` tokens of it, half from the beginning and half from the end; whole if it is short enough.

    Without room for anything only the mark is left. `omitted` are bytes that are missing in its middle already.
    """
    data = encoded(text)
    room = max(limit, 0) * BYTES_A_TOKEN
    if len(data) <= room:
        return text
    head = whole_characters(data, room // 2)
    tail = len(data) - (room - room // 2)
    while tail < len(data) and data[tail] & 0xC0 == 0x80:
        tail += 1
    missing = tokens(tail - head + omitted)
    return f"{data[:head].decode()}…{missing} tokens truncated…{data[tail:].decode()}"


MOST_TOKENS = 25_000
"""No more than this, whatever is asked for: it is what any output may have."""
LIMITS = {"memory": "took more memory than it may have", "processes": "started more processes than it may have"}


def answer(collected: Collected, *, terminal: int, title: str, seconds: float, limit: int) -> Result:
    """What is told of a terminal that goes on, or that ended well; how else it ended is raised, with the same."""
    text = cut(collected.text, min(limit, MOST_TOKENS), omitted=collected.omitted)
    is_cut = text != collected.text
    count = tokens(collected.size)
    code = None if collected.ended is None else collected.ended.code
    structured: dict[str, Any] = {
        "session_id": terminal if collected.ended is None else None,
        "exit_code": code,
        "output": text,
        "wall_time": round(seconds, 4),
        "original_token_count": count,
    }
    sizes = {"truncated": is_cut, "original_size": collected.size, "truncated_size": len(encoded(text))}
    result = Result(
        output="\n".join([*_head(structured), *(_warning(collected) if is_cut else []), text]),
        title=title,
        metadata={name: structured[name] for name in ("session_id", "exit_code", "wall_time")} | sizes,
        structured=structured,
    )
    if error := _failure(collected, result):
        raise error
    return result


def _head(told: dict[str, Any]) -> list[str]:
    code, terminal = told["exit_code"], told["session_id"]
    return [
        f"Chunk ID: {secrets.token_hex(3)}",
        f"Wall time: {told['wall_time']:.4f} seconds",
        f"Process running with session ID {terminal}" if code is None else f"Process exited with code {code}",
        f"Original token count: {told['original_token_count']}",
        "Output:",
    ]


def _warning(collected: Collected) -> list[str]:
    return [
        f"Warning: truncated output (original token count: {tokens(collected.size)})",
        f"Total output lines: {collected.lines}",
        "",
    ]


def _failure(collected: Collected, result: Result) -> CallError | None:
    if collected.ended is None:
        return None
    code, limit = collected.ended
    if limit is not None:
        details = {"exit_code": code, "limit": limit}
        return ResourceLimit(f"The command {LIMITS[limit]}, and was ended.", details=details, result=result)
    return ProgramFailed(code, f"The command ended with exit code {code}.", result=result) if code else None
