"""Suggests existing paths that a missing path may have meant."""

import errno
import os
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from typing import TypeVar

from app.core.errors import CallError, FileFailed
from app.core.files import touching
from app.core.ports import Entry, Workspace
from app.core.rules import Need
from app.core.tools import Context

MAX_SUGGESTIONS = 3
MAX_COMPARED_NAMES = 2000
MIN_SHARED_LENGTH = 3

T = TypeVar("T")
Scan = Callable[[str], Iterable[Entry]]


async def suggest_if_missing(path: str, ctx: Context, work: Awaitable[T]) -> T:
    """Await work on a path; if the path does not exist, the error also names similar paths that the call may read."""
    try:
        return await work
    except FileFailed as error:
        if error.code != "ENOENT":
            raise
        missing = error
    found = await ctx.in_thread(lambda stop: _similar_with_needs(path, ctx.workspace))
    allowed = [other for other, needs in found if all(ctx.is_allowed(needs))]
    if not allowed:
        raise missing
    raise FileFailed(errno.ENOENT, path, f"{missing.message} Did you mean {' or '.join(allowed)}?")


def _similar_with_needs(path: str, workspace: Workspace) -> list[tuple[str, list[Need]]]:
    found = []
    for other in similar_paths(path, workspace.scan):
        try:
            found.append((other, touching(workspace, "read", [other])))
        except CallError:
            continue
    return found


def similar_paths(path: str, scan: Scan) -> list[str]:
    """Up to three existing paths similar to a missing one, the most similar first.

    If a folder of the path is missing too, similar folders are tried, and named if none contains the rest of the path.
    """
    folder, name, rest = *os.path.split(path.rstrip("/")), ""
    while (entries := _entries(folder, scan)) is None:
        if not folder.strip("/"):
            return []
        rest = os.path.join(name, rest) if rest else name
        folder, name = os.path.split(folder.rstrip("/"))
    names = [entry.name for entry in entries if not rest or entry.kind in ("directory", "symlink")]
    found = [os.path.join(folder, other) for other in _similar_names(name, names)]
    whole = [os.path.join(other, rest) for other in found if rest and _exists(os.path.join(other, rest), scan)]
    return whole or found


def _entries(folder: str, scan: Scan) -> list[Entry] | None:
    try:
        return list(scan(folder or "."))
    except CallError:
        return None


def _exists(path: str, scan: Scan) -> bool:
    folder, name = os.path.split(path)
    return any(entry.name == name for entry in _entries(folder, scan) or ())


def _similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Names that differ only in case, then those with few characters changed, then those that contain each other."""
    key = name.casefold()
    folded = [(other.casefold(), other) for other in names if other.isprintable() and other != name]
    ranked = dict.fromkeys(other for short, other in folded if short == key)
    by_key: dict[str, list[str]] = {}
    for short, other in folded[:MAX_COMPARED_NAMES]:
        by_key.setdefault(short, []).append(other)
    for short in get_close_matches(key, by_key, n=MAX_SUGGESTIONS):
        ranked |= dict.fromkeys(by_key[short])
    containing = sorted(
        (abs(len(short) - len(key)), other)
        for short, other in folded
        if min(len(short), len(key)) >= MIN_SHARED_LENGTH and (short in key or key in short)
    )
    ranked |= dict.fromkeys(other for _, other in containing)
    return list(ranked)[:MAX_SUGGESTIONS]
