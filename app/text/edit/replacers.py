"""Replacers: where in a text an edit is meant, from the letter to the gist.

Nine replacers are tried in their order; each names pieces of the text that may be meant, and the first piece that is
there only once is replaced (with `replace_all`: the first piece at all, wherever it is there). A piece that is much
larger than what was asked for is never replaced. They are those of OpenCode, without its defects: the new text is
taken literally, the indentation of the file is kept, and so are its line ends.

None of them costs more than a few passes over the text: they search in views of it (see `pages`), look at no more
than `MOST_PLACES` places each, and of the pieces they name no more than `MOST_CHECKED` different ones are looked up.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from app.core.errors import EditMismatch
from app.text.edit.line_endings import Hit, NormalizedText, Spliced, fold, literal
from app.text.edit.reindent import reindent
from app.text.edit.replacers_anchored import block_anchor, context_aware, whitespace_normalized
from app.text.edit.text_views import MOST_PLACES, SPACES, Candidate, TextViews, bared, numbered

MOST_CHECKED = 32
MOST_LINES = 5

_ESCAPE = re.compile(r"""\\([ntr'"`\\$]|\n)""")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


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


def exact(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text itself, if it is there."""
    yield Candidate(wanted)


def line_trimmed(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines that are the wanted ones but for the white space around them."""
    lines = bared(wanted.removesuffix("\n"))
    return (Candidate(page.cut(first, len(lines)), is_whole=True) for first in page.windows(lines))


def indentation_flexible(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """Lines that are the wanted ones, all moved in or out by as much."""
    lines = wanted.split("\n")
    moved = _moved_out(lines)
    for first in page.windows(bared(wanted)):
        if _moved_out(page.lines[first : first + len(lines)]) == moved:
            yield Candidate(page.cut(first, len(lines)), is_whole=True)


def escape_normalized(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text that is meant when what is escaped in it, or in the file, should not be."""
    plain = _unescaped(wanted).replace("\r\n", "\n")
    if plain in page.text:
        yield Candidate(plain)
    if "\\" not in page.text:
        return
    count = plain.count("\n") + 1
    for first in _plain_windows(page, plain):
        block = page.cut(first, count)
        if _unescaped(block) == plain:
            yield Candidate(block)


def trimmed_boundary(page: TextViews, wanted: str) -> Iterator[Candidate]:
    """The text without the white space around it, or as many lines that are blank but for it."""
    trimmed = wanted.strip(SPACES)
    if trimmed == wanted or trimmed not in page.text:
        return
    yield Candidate(trimmed)
    count, lines = wanted.count("\n") + 1, bared(trimmed)
    for first in page.windows(lines):
        if page.cut(first, len(lines)).strip(SPACES) == trimmed:
            for begin in page.around(first, first + len(lines) - 1, count):
                yield Candidate(page.cut(begin, count), is_whole=True)


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


def _moved_out(lines: list[str]) -> list[str]:
    """Lines without the indentation they share; blank ones are left as they are."""
    indents = [len(line) - len(line.lstrip(SPACES)) for line in lines if line.strip(SPACES)]
    shared = min(indents, default=0)
    return [line[shared:] if line.strip(SPACES) else line for line in lines]


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def _plain_windows(page: TextViews, plain: str) -> Iterator[int]:
    """Where lines stand that may be the plain ones without their escapes.

    Lines are freed of their escapes one by one. A line in which a line end is escaped would be two, so it fits
    nowhere. A backslash at the end of a line escapes what ends it, unless the line is the last one.
    """
    lines = [_unescaped(f"{line}\n")[:-1] if "\\" in line else line for line in page.lines]
    text = "\n" + "\n".join("\0" if "\n" in line else line for line in lines)
    if plain.endswith("\\"):
        return numbered(text, f"\n{plain[:-1]}")
    return numbered(f"{text}\n", f"\n{plain}\n")


def _not_found() -> EditMismatch:
    return EditMismatch("old_string was not found", details={"reason": "not_found"})


def _ambiguous(page: TextViews, piece: str, wanted: str) -> EditMismatch:
    """How often and where it is there, so that the model can say which one it means."""
    text = page.text
    count = max(2, text.count(piece))
    lines = list(dict.fromkeys(line + 1 for line in islice(numbered(text, piece), MOST_LINES)))
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
