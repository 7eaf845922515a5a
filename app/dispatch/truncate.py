"""Truncation of long output to its head and tail."""

from app.core.results import Result
from app.core.tools import Keep, Truncation


def truncate(result: Result, policy: Truncation) -> Result:
    """Cut an output that is too long, and say so. A tool that set `metadata.truncated` has done it itself."""
    if "truncated" in result.metadata:
        return result
    size = len(result.output)
    output = result.output if size <= policy.limit else _cut(result.output, result.output, size, policy)
    sizes = _sizes(size, output, policy)
    return Result(output, result.title, result.metadata | sizes, result.attachments, result.structured)


def truncate_ends(head: str, tail: str, size: int, policy: Truncation) -> Result:
    """The same for an output of which only both ends are at hand, each as long as it may have to be shown."""
    output = _cut(head, tail, size, policy)
    return Result(output, metadata=_sizes(size, output, policy))


def _sizes(size: int, output: str, policy: Truncation) -> dict[str, bool | int]:
    return {"truncated": size > policy.limit, "original_size": size, "truncated_size": len(output)}


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
