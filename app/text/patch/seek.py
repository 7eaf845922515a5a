"""Seeking: where lines stand in a file, by four passes from strict to lenient, each over the whole rest of the file.

A pass looks at a copy of the file in which some differences are gone: none, those at the end of lines, those at both
ends, those of typography. Copies are made when they are needed, once, and searched as one text, so a search costs
what one look at the text costs, however many lines are sought and however often they almost fit. The first few that
do not fit as they are need no copies: something in them is as it is in every pass, and stands at few places.
"""

import re
import secrets
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

FOLDS = (
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)
_CHANGED = re.compile(r"[-'\"\s]+")
"""What a pass may change or leave out; what is between is as it is in all of them."""
LOOKS = 8
PIECES = 3
PLACES = 16
"""How often we look for a piece that no pass changes, before copies are made; for how many of the lines that are
sought, and at how many places it may be."""
NEAR = 64
"""Lines that are walked one by one from a known place; farther ones are looked up in an index of all of them."""
IN_VAIN = 4
IN_VAIN_AT_ALL = 32
"""How often a whole text is searched in vain before a search first asks whether the lines are there at all, and before
it goes by an index of windows."""
_PRIME = 2**61 - 1


def fold(text: str) -> str:
    """Dashes, quotes and spaces as a keyboard has them."""
    if text.isascii():
        return text
    for fancy, plain in FOLDS.items():
        text = text.replace(fancy, plain)
    return text


@dataclass(frozen=True, slots=True)
class Match:
    """From line `line` on (the first is 0); `is_trimmed`: the indentation may differ."""

    line: int
    is_trimmed: bool


class SeekableText:
    """A text whose lines end with LF, and the ways to look at it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.ends = text.count("\n")
        self.count = self.ends + (not text.endswith("\n") and text != "")
        self.exact = View(text, self.count)
        self._looks = 0

    def seek(self, wanted: Sequence[str], start: int, *, is_at_end: bool = False) -> Match | None:
        """The first place from line `start` on where these lines stand, in the strictest pass that finds one."""
        if not wanted:
            return Match(start, is_trimmed=False)
        start = max(start, self.count - len(wanted)) if is_at_end else start
        if start + len(wanted) > self.count:
            return None
        if is_at_end:
            return self._strictest(wanted, [start])
        exact = self.exact.find(list(wanted), start)
        if exact is not None:
            return Match(exact, is_trimmed=False)
        places = self._places(wanted, start)
        return self._by_views(wanted, start) if places is None else self._strictest(wanted, places)

    def _strictest(self, wanted: Sequence[str], places: Iterable[int]) -> Match | None:
        """Which of these places it is."""
        best: tuple[int, int] | None = None
        for line in places:
            there = self.cut(line, line + len(wanted))
            fitting = (number for number, same in enumerate(_SAME) if [*map(same, there)] == [*map(same, wanted)])
            found = (next(fitting, len(_SAME)), line)
            if found[0] < len(_SAME) and (best is None or found < best):
                best = found
        return None if best is None else Match(best[1], is_trimmed=best[0] > 1)

    def _places(self, wanted: Sequence[str], start: int) -> list[int] | None:
        """Where the lines can begin at all, by a long piece that no pass changes; None when none tells it."""
        pieces = sorted(enumerate(map(self._unchanged, wanted)), key=lambda numbered: len(numbered[1]), reverse=True)
        for place, piece in pieces[:PIECES]:
            lines = self._lines_with(piece, start) if piece and self._looks < LOOKS else None
            if lines is not None:
                return [line - place for line in lines if start <= line - place <= self.count - len(wanted)]
        return None

    def _unchanged(self, line: str) -> str:
        """What of a line is in the file as it is, if any pass finds the line. What is ASCII is only trimmed."""
        return _folded(line) if self.text.isascii() else max(_CHANGED.split(fold(line)), key=len)

    def _lines_with(self, piece: str, start: int) -> list[int] | None:
        """The lines from `start` on in which a piece stands; None when they are many."""
        self._looks += 1
        lines, begin = list[int](), self.exact.offset(start)
        at = self.text.find(piece, begin)
        while at >= 0 and len(lines) <= PLACES:
            lines.append(self.exact.line(self.text.rfind("\n", 0, at) + 1))
            at = self.text.find(piece, self.exact.offset(lines[-1] + 1))
        self.exact.searched += (len(self.text) if at < 0 else at) - begin
        return lines if at < 0 else None

    def _by_views(self, wanted: Sequence[str], start: int) -> Match | None:
        def find(view: View, same: Callable[[str], str]) -> int | None:
            return view.find([*map(same, wanted)], start)

        # What the most lenient pass does not find, none does.
        loose = find(self.folded, _folded)
        if loose is None:
            return None
        ended = find(self.ended, str.rstrip)
        if ended is not None:
            return Match(ended, is_trimmed=False)
        trimmed = find(self.trimmed, str.strip)
        return Match(loose if trimmed is None else trimmed, is_trimmed=True)

    def piece(self, start: int, end: int) -> str:
        """The text from line `start` to before line `end`."""
        return self.text[self.exact.offset(start) : self.exact.offset(end)]

    def cut(self, start: int, end: int) -> list[str]:
        """The same as lines without their ends."""
        return self.piece(start, end).removesuffix("\n").split("\n") if start < end else []

    @cached_property
    def ended(self) -> "View":
        return View.of(list(map(str.rstrip, self.exact.lines)))

    @cached_property
    def trimmed(self) -> "View":
        return View.of(list(map(str.strip, self.exact.lines)))

    @cached_property
    def folded(self) -> "View":
        text = fold(self.trimmed.text)
        return self.trimmed if text is self.trimmed.text else View(text, self.count)


def _offset(mark: tuple[int, int]) -> int:
    return mark[1]


def _exact(line: str) -> str:
    return line


def _folded(line: str) -> str:
    return fold(line.strip())


_SAME: tuple[Callable[[str], str], ...] = (_exact, str.rstrip, str.strip, _folded)
"""What lines are compared by, in each pass."""


class View:
    """A text of so many lines as one pass compares it. `searched` counts the characters that searches went over."""

    def __init__(self, text: str, count: int) -> None:
        self.text = text
        self.searched = 0
        self._in_vain = 0
        self._offsets = {0: 0, count: len(text)}
        self._marks = sorted(self._offsets.items())

    @classmethod
    def of(cls, lines: list[str]) -> "View":
        """Each line has its end here, or a last one that is blank by now would be none any more."""
        view = cls("\n".join([*lines, ""]), len(lines))
        view.__dict__["lines"] = lines
        return view

    def find(self, wanted: list[str], start: int) -> int | None:
        """The line from which on these lines stand, not before line `start`."""
        if self._in_vain > IN_VAIN * len(self.text) and not self._known.issuperset(wanted):
            return None
        if self._in_vain > IN_VAIN_AT_ALL * len(self.text):
            return self._windows.find(wanted, start)
        begin = self.offset(start)
        found = self._search("\n".join(wanted), begin)
        over = (len(self.text) if found is None else found) - begin
        self.searched += over
        if found is None:
            self._in_vain += over
            return None
        return self.line(found)

    def offset(self, line: int) -> int:
        """Where a line begins; the one after the last begins at the end."""
        known = self._offsets.get(line)
        if known is not None:
            return known
        at = bisect_right(self._marks, (line, 0))
        near, after = self._marks[at - 1], self._marks[at]
        if after[0] - line < line - near[0]:
            near = after
        if abs(near[0] - line) > NEAR:
            offset = min(self._lengths[line] + line, len(self.text))
        else:
            offset = self._walked(near, line)
        self._mark(line, offset)
        return offset

    def line(self, offset: int) -> int:
        """The line that begins here, counted from the nearest place before it that is known."""
        line, known = self._marks[bisect_right(self._marks, offset, key=_offset) - 1]
        line += self.text.count("\n", known, offset)
        self._mark(line, offset)
        return line

    @cached_property
    def lines(self) -> list[str]:
        lines = self.text.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @cached_property
    def _lengths(self) -> list[int]:
        """How many characters the lines before each line have, their ends not counted."""
        return list(accumulate(map(len, self.lines), initial=0))

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.lines)

    @cached_property
    def _windows(self) -> "Windows":
        return Windows(self.lines)

    def _search(self, needle: str, begin: int) -> int | None:
        text = self.text
        if begin == 0 and (text.startswith(f"{needle}\n") or text == needle):
            return 0
        found = text.find(f"\n{needle}\n", max(begin - 1, 0))
        if found >= 0:
            return found + 1
        last = len(text) - len(needle)
        return last if last >= begin and not text.endswith("\n") and text.endswith(f"\n{needle}") else None

    def _walked(self, near: tuple[int, int], line: int) -> int:
        here, offset = near
        for _ in range(here, line):
            offset = self.text.find("\n", offset) + 1 or len(self.text)
        for _ in range(line, here):
            offset = self.text.rfind("\n", 0, offset - 1) + 1
        return offset

    def _mark(self, line: int, offset: int) -> None:
        if line not in self._offsets:
            self._offsets[line] = offset
            insort(self._marks, (line, offset))


class Windows:
    """Every run of so many lines, by its hash: what a search goes by when it would look too often in vain."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._ids = {line: number for number, line in enumerate(dict.fromkeys(lines), 1)}
        # Nobody can know it beforehand, so nobody can make lines whose hashes meet.
        self._base = secrets.randbelow(_PRIME // 2) + _PRIME // 4
        self._sums = self._summed(self._ids[line] for line in lines)
        self._tables: dict[int, dict[int, list[int]]] = {}

    def find(self, wanted: list[str], start: int) -> int | None:
        size = len(wanted)
        if size not in self._tables:
            self._tables[size] = self._table(size)
        places = self._tables[size].get(self._summed(self._ids.get(line, 0) for line in wanted)[-1], [])
        for at in range(bisect_left(places, start), len(places)):
            if self._lines[places[at] : places[at] + size] == wanted:
                return places[at]
        return None

    def _table(self, size: int) -> dict[int, list[int]]:
        table = dict[int, list[int]]()
        power = pow(self._base, size, _PRIME)
        for place, (before, after) in enumerate(zip(self._sums, self._sums[size:], strict=False)):
            table.setdefault((after - before * power) % _PRIME, []).append(place)
        return table

    def _summed(self, ids: Iterable[int]) -> list[int]:
        return list(accumulate(ids, lambda total, id: (total * self._base + id) % _PRIME, initial=0))
