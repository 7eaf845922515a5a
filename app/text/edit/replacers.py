"""Replacers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from app.core.errors import EditMismatch
from app.text.edit.candidates import (
    MOST_PLACES,
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
from app.text.edit.line_endings import Hit, NormalizedText, Spliced, fold, literal
from app.text.edit.nearest_lines import line_numbers, nearest
from app.text.edit.reindent import reindent

MOST_CHECKED = 32
MOST_LINES = 5

MOST_SHOWN = 30
LONGEST_SHOWN = 300

ADVICE = {
    "ambiguous": "give more of what stands around the one that is meant, or set replace_all to change all of them",
    "disproportionate": "read the file again and give all of the text that is to be replaced",
}


@dataclass(frozen=True, slots=True)
class Replaced(Spliced):
    """The text after an edit, and the replacer that found what was meant."""

    strategy: str


class _Edit(NamedTuple):
    folded: NormalizedText
    wanted: str
    new: str
    replace_all: bool


def replace(content: str, old: str, new: str, *, replace_all: bool = False, strict: bool = False) -> Replaced:
    """Replace what is meant by `old`. Raises `EditMismatch`; its details tell the `reason`."""
    folded = fold(content)
    if "\r" in old.replace("\r\n", "") and folded.end != "\r" and old in content:
        # Who names a return that ends no line means the text as it is, to the letter.
        folded, strict = literal(content), True
    edit = _Edit(folded, folded.take(old), folded.take(new), replace_all)
    return _at_once(edit) or _searched(edit, strict)


def _at_once(edit: _Edit) -> Replaced | None:
    """What is there to the letter is found in the text as it is; mostly nothing else is to be done."""
    raw, piece = edit.folded.raw, edit.folded.raw_form(edit.wanted)
    at = -1 if piece is None else raw.find(piece)
    if piece is None or at < 0 or not (edit.replace_all or raw.find(piece, at + 1) < 0):
        return None
    return _replaced(EXACT, edit.folded.splice_raw(_hits(raw, piece, at), edit.new))


def _searched(edit: _Edit, strict: bool) -> Replaced:
    page, ambiguous = TextViews(edit.folded.text), list[Candidate]()
    for name, candidate in _candidates(page, edit.wanted, strict):
        at = page.text.find(candidate.text)
        if at < 0:
            continue
        if _is_out_of_proportion(candidate.text, edit.wanted):
            raise _refused(page, at, candidate.text)
        if not edit.replace_all and page.text.find(candidate.text, at + 1) >= 0:
            ambiguous.append(candidate)
            continue
        new = reindent(edit.new, edit.wanted, candidate.text) if candidate.is_whole else edit.new
        return _replaced(name, edit.folded.splice(_hits(page.text, candidate.text, at), new))
    raise _ambiguous(page, ambiguous[0].text, edit.wanted) if ambiguous else _not_found()


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


def _candidates(page: TextViews, wanted: str, strict: bool) -> Iterator[tuple[str, Candidate]]:
    """The pieces the replacers name, each once. White space alone names nothing but itself."""
    seen = set[str]()
    strategies = STRATEGIES[:1] if strict or not wanted.strip(SPACES) else STRATEGIES
    for name, strategy in strategies:
        for candidate in islice(strategy(page, wanted), MOST_PLACES):
            if candidate.text in seen:
                continue
            if len(seen) == MOST_CHECKED:
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


def _not_found() -> EditMismatch:
    return EditMismatch("old_string was not found", details={"reason": "not_found"})


def _ambiguous(page: TextViews, piece: str, wanted: str) -> EditMismatch:
    """How often and where it is there, so that the model can say which one it means."""
    text = page.text
    count = max(2, text.count(piece))
    lines = list(dict.fromkeys(line + 1 for line in islice(line_numbers(text, piece), MOST_LINES)))
    what = "old_string" if piece == wanted else "what comes nearest to old_string"
    details = {"reason": "ambiguous", "count": count, "lines": lines}
    return EditMismatch(f"{what} is there {count} times ({_listed(lines, count)})", details=details)


def _refused(page: TextViews, at: int, piece: str) -> EditMismatch:
    first = page.text.count("\n", 0, at) + 1
    lines = [first, first + piece.count("\n")]
    what = f"what comes nearest to old_string (lines {lines[0]} to {lines[1]}) is much larger than it"
    return EditMismatch(what, details={"reason": "disproportionate", "lines": lines})


def _listed(lines: list[int], count: int) -> str:
    shown = ", ".join(str(line) for line in lines)
    return f"{'line' if len(lines) == 1 else 'lines'} {shown}" + (" and more" if count > MOST_LINES else "")


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
        said.append(f"Did you mean to replace these lines?\n{_numbered_lines(**more['nearest'])}")
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


def _numbered_lines(line: int, text: str) -> str:
    return "\n".join(f"L{number}: {shown}" for number, shown in enumerate(text.split("\n"), line))
