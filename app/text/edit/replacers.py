"""Replaces the text that an edit means, found exactly or by a similar piece.

Nine strategies are tried in order; each names candidate pieces of the text, and the first piece that occurs only once
is replaced (with `replace_all`: the first piece, at every occurrence). A piece much larger than the wanted text is
never replaced. The strategies are those of OpenCode without its defects: the new text is taken literally, and the file
keeps its indentation and line ends. Each considers at most `MAX_PLACES` places, and at most `MAX_CHECKED` different
pieces are looked up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from app.core.errors import EditMismatch
from app.text.edit.candidates import (
    MAX_PLACES,
    SPACES,
    Candidate,
    TextViews,
    block_anchor,
    context_aware,
    escape_normalized,
    exact,
    indentation_flexible,
    line_trimmed,
    trimmed_boundary,
    whitespace_normalized,
)
from app.text.edit.line_endings import Hit, NormalizedText, Spliced, literal, normalize
from app.text.edit.nearest_lines import excerpt, line_numbers, nearest, numbered_excerpt
from app.text.edit.reindent import reindent

MAX_CHECKED = 32
MAX_LISTED_LINES = 5

ADVICE = {
    "ambiguous": "give more of the surrounding text to make it unique, or set replace_all to change all of them",
    "disproportionate": "read the file again and give all of the text to replace",
}


@dataclass(frozen=True, slots=True)
class Replaced(Spliced):
    """The text after an edit, and the strategy that found the place."""

    strategy: str


class _Edit(NamedTuple):
    text: NormalizedText
    wanted: str
    new: str
    replace_all: bool


def replace(content: str, old: str, new: str, *, replace_all: bool = False, strict: bool = False) -> Replaced:
    """Replace the text that `old` means. Raises `EditMismatch` with the `reason` in its details."""
    normalized = normalize(content)
    if "\r" in old.replace("\r\n", "") and normalized.end != "\r" and old in content:
        # A CR that does not end a line is meant literally.
        normalized, strict = literal(content), True
    edit = _Edit(normalized, normalized.convert(old), normalized.convert(new), replace_all)
    return _replace_exact(edit) or _replace_similar(edit, strict)


def _replace_exact(edit: _Edit) -> Replaced | None:
    """The usual case: the wanted text occurs exactly, and once."""
    raw, piece = edit.text.raw, edit.text.raw_form(edit.wanted)
    at = -1 if piece is None else raw.find(piece)
    if piece is None or at < 0 or not (edit.replace_all or raw.find(piece, at + 1) < 0):
        return None
    return _replaced(EXACT, edit.text.splice_raw(_hits(raw, piece, at), edit.new))


def _replace_similar(edit: _Edit, strict: bool) -> Replaced:
    views, ambiguous = TextViews(edit.text.text), list[Candidate]()
    for name, candidate in _candidates(views, edit.wanted, strict):
        at = views.text.find(candidate.text)
        if at < 0:
            continue
        if _is_out_of_proportion(candidate.text, edit.wanted):
            raise _disproportionate(views, at, candidate.text)
        if not edit.replace_all and views.text.find(candidate.text, at + 1) >= 0:
            ambiguous.append(candidate)
            continue
        new = reindent(edit.new, edit.wanted, candidate.text) if candidate.is_whole else edit.new
        return _replaced(name, edit.text.splice(_hits(views.text, candidate.text, at), new))
    if ambiguous:
        raise _ambiguous(views, ambiguous[0].text, edit.wanted)
    raise EditMismatch("old_string was not found", details={"reason": "not_found"})


Strategy = Callable[[TextViews, str], Iterator[Candidate]]

STRATEGIES: tuple[tuple[str, Strategy], ...] = (
    ("SimpleReplacer", exact),
    ("LineTrimmedReplacer", line_trimmed),
    ("BlockAnchorReplacer", block_anchor),
    ("WhitespaceNormalizedReplacer", whitespace_normalized),
    ("IndentationFlexibleReplacer", indentation_flexible),
    ("EscapeNormalizedReplacer", escape_normalized),
    ("TrimmedBoundaryReplacer", trimmed_boundary),
    ("ContextAwareReplacer", context_aware),
    ("MultiOccurrenceReplacer", exact),
)
EXACT = STRATEGIES[0][0]


def _candidates(views: TextViews, wanted: str, strict: bool) -> Iterator[tuple[str, Candidate]]:
    """The pieces that the strategies name, each once. White space alone is only matched exactly."""
    seen = set[str]()
    strategies = STRATEGIES[:1] if strict or not wanted.strip(SPACES) else STRATEGIES
    for name, strategy in strategies:
        for candidate in islice(strategy(views, wanted), MAX_PLACES):
            if candidate.text in seen:
                continue
            if len(seen) == MAX_CHECKED:
                return
            seen.add(candidate.text)
            yield name, candidate


def _hits(text: str, piece: str, at: int) -> Iterator[Hit]:
    while at >= 0:
        yield at, at + len(piece)
        at = text.find(piece, at + len(piece))


def _replaced(strategy: str, made: Spliced) -> Replaced:
    return Replaced(made.text, made.spans, made.count, made.first_line, made.last_line, strategy)


def _is_out_of_proportion(piece: str, wanted: str) -> bool:
    lines = wanted.count("\n") + 1
    if piece.count("\n") + 1 >= max(lines + 3, lines * 2):
        return True
    size = len(wanted.strip(SPACES))
    return lines > 1 and len(piece.strip(SPACES)) > max(size + 500, size * 4)


def _ambiguous(views: TextViews, piece: str, wanted: str) -> EditMismatch:
    """With how often and where it occurs, so that the model can say which one it means."""
    count = max(2, views.text.count(piece))
    lines = list(dict.fromkeys(line + 1 for line in islice(line_numbers(views.text, piece), MAX_LISTED_LINES)))
    what = "old_string" if piece == wanted else "the text most similar to old_string"
    noun = "line" if len(lines) == 1 else "lines"
    where = f"{noun} {', '.join(map(str, lines))}" + (" and more" if count > MAX_LISTED_LINES else "")
    details = {"reason": "ambiguous", "count": count, "lines": lines}
    return EditMismatch(f"{what} occurs {count} times ({where})", details=details)


def _disproportionate(views: TextViews, at: int, piece: str) -> EditMismatch:
    first = views.text.count("\n", 0, at) + 1
    lines = [first, first + piece.count("\n")]
    what = f"the text most similar to old_string (lines {lines[0]} to {lines[1]}) is much larger than it"
    return EditMismatch(what, details={"reason": "disproportionate", "lines": lines})


def explain_mismatch(mismatch: EditMismatch, path: str, old: str, new: str, text: str | None) -> EditMismatch:
    """The same mismatch with advice. `text` is that of the file; None if it may not be shown."""
    details = {"path": path} | (mismatch.details or {})
    advice = ADVICE.get(details["reason"])
    if advice is not None:
        return EditMismatch(f"In {path}, {mismatch.message}; {advice}.", details=details)
    clues = {} if text is None else _clues(text, old, new)
    sentences = [f"old_string is not in {path}."]
    if "already_applied" in clues:
        line = clues["already_applied"]
        sentences.append(f"But new_string is, in line {line}: the edit seems to be applied already.")
    if "nearest" in clues:
        sentences.append(f"Did you mean to replace these lines?\n{numbered_excerpt(**clues['nearest'])}")
    if not clues:
        sentences.append("Read the file again, and give the text exactly as it is there.")
    return EditMismatch(" ".join(sentences), details=details | clues)


def _clues(text: str, old: str, new: str) -> dict[str, Any]:
    """The line of the new text, if it is there already, and the lines most similar to the old text."""
    normalized = normalize(text)
    clues: dict[str, Any] = {}
    at = normalized.text.find(normalized.convert(new)) if new.strip() else -1
    if at >= 0:
        clues["already_applied"] = normalized.text.count("\n", 0, at) + 1
    lines = normalized.text.split("\n")
    near = nearest(lines, normalized.convert(old).split("\n"))
    return clues if near is None else clues | {"nearest": excerpt(lines, near)}
