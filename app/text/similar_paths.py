"""Neighbours: what somebody may have meant who named a file that is not there."""

import os
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

from app.core.errors import CallError
from app.core.ports import Entry

MOST = 3
MOST_COMPARED = 2000
LEAST_SHARED = 3

Scan = Callable[[str], Iterable[Entry]]


def near(path: str, scan: Scan) -> list[str]:
    """Up to three existing paths like a missing one, the likeliest first.

    When a folder on the way is missing too, its neighbours are tried, and if none has the rest of the path, named.
    """
    folder, wanted, rest = *os.path.split(path.rstrip("/")), ""
    while (entries := _entries(folder, scan)) is None:
        if not folder.strip("/"):
            return []
        rest = os.path.join(wanted, rest) if rest else wanted
        folder, wanted = os.path.split(folder.rstrip("/"))
    names = [entry.name for entry in entries if not rest or entry.kind in ("directory", "symlink")]
    found = [os.path.join(folder, name) for name in _alike(wanted, names)]
    whole = [os.path.join(place, rest) for place in found if rest and _exists(os.path.join(place, rest), scan)]
    return whole or found


def _entries(folder: str, scan: Scan) -> list[Entry] | None:
    try:
        return list(scan(folder or "."))
    except CallError:
        return None


def _exists(path: str, scan: Scan) -> bool:
    folder, name = os.path.split(path)
    return any(entry.name == name for entry in _entries(folder, scan) or ())


def _alike(wanted: str, names: Iterable[str]) -> list[str]:
    """Names that differ in case only, then those with few letters changed, then those that contain each other."""
    asked = wanted.casefold()
    folded = [(name.casefold(), name) for name in names if name.isprintable() and name != wanted]
    ranked = dict.fromkeys(name for short, name in folded if short == asked)
    by_letters: dict[str, list[str]] = {}
    for short, name in folded[:MOST_COMPARED]:
        by_letters.setdefault(short, []).append(name)
    for short in get_close_matches(asked, by_letters, n=MOST):
        ranked |= dict.fromkeys(by_letters[short])
    ranked |= dict.fromkeys(_sharing(asked, folded))
    return list(ranked)[:MOST]


def _sharing(asked: str, folded: list[tuple[str, str]]) -> Iterator[str]:
    found = [
        (abs(len(short) - len(asked)), name)
        for short, name in folded
        if min(len(short), len(asked)) >= LEAST_SHARED and (short in asked or asked in short)
    ]
    return (name for _, name in sorted(found))
