"""Results of tools. The field names are those that agent frontends know."""

import base64
import binascii
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote_to_bytes

MAX_INLINE_BYTES = 256 * 1024
"""Largest attachment that is stored inside its result; a larger one is stored separately."""
MAX_ATTACHED_BYTES = 32 * 1024 * 1024
"""Bytes that all attachments of a call may have together."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that belongs to a result; `url` is a data URL or a route of this service."""

    mime: str
    url: str
    filename: str | None = None
    type: str = "file"


@dataclass(frozen=True, slots=True)
class Result:
    """`output` is what the model reads; `metadata` is for the frontend; `structured` is data for programs."""

    output: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    structured: Any = None


class Keep(StrEnum):
    """Which part of a truncated output the model sees."""

    HEAD = "head"
    TAIL = "tail"
    MIDDLE = "middle"


@dataclass(frozen=True, slots=True)
class Truncation:
    limit: int = 100_000
    keep: Keep = Keep.HEAD


def truncate(result: Result, policy: Truncation) -> Result:
    """Cut an output that is too long and note its sizes. A tool that set `metadata.truncated` has cut it itself."""
    if "truncated" in result.metadata:
        return result
    size = len(result.output)
    output = result.output if size <= policy.limit else _cut(result.output, result.output, size, policy)
    metadata = {
        **result.metadata,
        "truncated": size > policy.limit,
        "original_size": size,
        "truncated_size": len(output),
    }
    return Result(output, result.title, metadata, result.attachments, result.structured)


def truncate_ends(head: str, tail: str, size: int, policy: Truncation) -> Result:
    """Like `truncate`, for an output of which only head and tail are loaded, each at least `policy.limit` long."""
    output = _cut(head, tail, size, policy)
    sizes = {"truncated": size > policy.limit, "original_size": size, "truncated_size": len(output)}
    return Result(output, metadata=sizes)


def _cut(head: str, tail: str, size: int, policy: Truncation) -> str:
    note = f"[output truncated, {size - policy.limit} characters omitted]"
    match policy.keep:
        case Keep.HEAD:
            return f"{head[: policy.limit]}\n{note}"
        case Keep.TAIL:
            return f"{note}\n{tail[len(tail) - policy.limit :]}"
        case Keep.MIDDLE:
            first = policy.limit // 2
            last = policy.limit - first
            return f"{head[:first]}\n{note}\n{tail[len(tail) - last :]}"


def attach(data: bytes, mime: str, filename: str | None = None) -> Attachment:
    """Bytes as an attachment."""
    return Attachment(mime, f"data:{mime};base64,{base64.b64encode(data).decode()}", filename)


def data_of(url: str) -> bytes | None:
    """The bytes in a data URL; None when it is another URL, or cannot be read."""
    head, comma, body = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    data = unquote_to_bytes(body)
    if not head.lower().endswith(";base64"):
        return data
    try:
        return base64.b64decode(data)
    except binascii.Error:
        return None
