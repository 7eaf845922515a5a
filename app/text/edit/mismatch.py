"""Mismatches: why an edit did not fit its file, in words that let a model do better."""

from typing import Any

from app.core.errors import EditMismatch
from app.text.edit.line_endings import fold
from app.text.edit.nearest_lines import nearest

MOST_SHOWN = 30
LONGEST_SHOWN = 300

ADVICE = {
    "ambiguous": "give more of what stands around the one that is meant, or set replace_all to change all of them",
    "disproportionate": "read the file again and give all of the text that is to be replaced",
}


def explained(mismatch: EditMismatch, path: str, edit: tuple[str, str], text: str | None) -> EditMismatch:
    """The same mismatch of an edit (old and new string) of this path, with advice.

    `text` is what the file says; None when that may not be shown.
    """
    details = {"path": path} | (mismatch.details or {})
    advice = ADVICE.get(details["reason"])
    if advice is not None:
        return EditMismatch(f"In {path}, {mismatch.message}; {advice}.", details=details)
    said, more = [f"old_string is not in {path}."], dict[str, Any]()
    if text is not None:
        more = _clues(text, *edit)
    if "already_applied" in more:
        said.append(f"But new_string is, in line {more['already_applied']}: the edit seems to be made already.")
    if "nearest" in more:
        said.append(f"Did you mean to replace these lines?\n{_numbered(**more['nearest'])}")
    if not more:
        said.append("Read the file again, and give the text as it stands there.")
    return EditMismatch(" ".join(said), details=details | more)


def _clues(text: str, old: str, new: str) -> dict[str, Any]:
    """Whether the edit is made already, in which line, and what is most like the text it looks for."""
    folded = fold(text)
    clues: dict[str, Any] = {}
    at = folded.text.find(folded.take(new)) if new.strip() else -1
    if at >= 0:
        clues["already_applied"] = folded.text.count("\n", 0, at) + 1
    lines = folded.text.split("\n")
    close = nearest(lines, folded.take(old).split("\n"))
    if close is not None:
        shown = [line[:LONGEST_SHOWN] for line in lines[close.start : close.stop][:MOST_SHOWN]]
        clues["nearest"] = {"line": close.start + 1, "text": "\n".join(shown)}
    return clues


def _numbered(line: int, text: str) -> str:
    return "\n".join(f"L{number}: {shown}" for number, shown in enumerate(text.split("\n"), line))
