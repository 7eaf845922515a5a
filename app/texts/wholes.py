"""Whole files put in place or taken away: what the result tells of it, as far as both sides are text."""

from typing import Any

from app.core.errors import CallError
from app.core.files import Snapshot
from app.texts.contents import Content, read
from app.texts.drafts import Draft, facts

MOST_COMPARED = 256 * 1024
"""Bytes of a file whose diff is shown."""


def facts_of(path: str, before: Snapshot | None, after: bytes | None, kind: str) -> dict[str, Any]:
    """The facts that every mutating tool gives. None on a side that should be there: it was not looked at."""
    old, new = _text(before.data if before else None, path), _text(after, path)
    is_told = (before is None) == (kind == "added") and (after is None) == (kind == "deleted")
    if is_told and (old or before is None) and (new or after is None):
        return facts([Draft(path=path, before=before, old=old, new=new)])
    file = {"path": path, "kind": kind, "additions": 0, "deletions": 0}
    return {"diff": "", "additions": 0, "deletions": 0, "files": [file]}


def _text(data: bytes | None, path: str) -> Content | None:
    try:
        return None if data is None else read(data, path)
    except CallError:
        return None
