"""Truncation: no output floods a model's context. The whole of it stays readable in the store."""

from app.core.results import Result
from app.core.tools import Keep, Truncation


def truncate(result: Result, policy: Truncation) -> Result:
    """Cut an output that is too long, and say so. A tool that set `metadata.truncated` has done it itself."""
    if "truncated" in result.metadata:
        return result
    size = len(result.output)
    output = result.output if size <= policy.limit else _cut(result.output, policy)
    sizes = {"truncated": size > policy.limit, "original_size": size, "truncated_size": len(output)}
    return Result(output, result.title, result.metadata | sizes, result.attachments, result.structured)


def _cut(text: str, policy: Truncation) -> str:
    note = f"[output truncated, {len(text) - policy.limit} characters omitted]"
    match policy.keep:
        case Keep.HEAD:
            return f"{text[: policy.limit]}\n{note}"
        case Keep.TAIL:
            return f"{note}\n{text[len(text) - policy.limit :]}"
        case Keep.MIDDLE:
            head = policy.limit // 2
            tail = policy.limit - head
            return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"
