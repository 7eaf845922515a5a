"""Shifts: lines that stand in a file as they are given, but for one indentation more or less before all of them."""

from collections.abc import Iterator, Sequence

from app.texts.manuscripts import Manuscript, Splice

MOST_COMPARED = 200_000


class Endless(Exception):
    """So many places nearly fit that they are not all looked at: the text repeats itself again and again."""


def outdented(*texts: Sequence[str]) -> list[list[str]]:
    """Texts without the indentation that all their lines have in common."""
    depths = [len(line) - len(line.lstrip()) for text in texts for line in text if line.strip()]
    least = min(depths, default=0)
    return [[line[least:] if line.strip() else line for line in text] for text in texts]


def indented(lines: Sequence[str], add: str) -> list[str]:
    return [add + line if line.strip() else line for line in lines]


def places(script: Manuscript, lines: Sequence[str], *, apart: bool = False) -> Iterator[tuple[int, str]]:
    """Where outdented lines stand on a script, and what is before each of them there. Blank lines fit blank lines.

    `apart`: of places that meet, only the first. Else there may be more than it takes; then it raises `Endless`.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return
    left = MOST_COMPARED
    for start in script.places([line.lstrip() for line in lines], bare=True, apart=apart):
        left -= 0 if apart else len(lines)
        if left < 0:
            raise Endless
        add = before(script.lines[start + first], lines[first])
        if add is not None and all(fits(script.lines[start + n], line, add) for n, line in enumerate(lines)):
            yield start, add


def before(there: str, line: str) -> str | None:
    """What stands before a line in the file where both are the same but for that; None where the file has less."""
    return there.removesuffix(line) if there.endswith(line) else None


def fits(there: str, line: str, add: str) -> bool:
    return there == add + line if line.strip() else not there.strip()


def replacing(start: int, old: Sequence[str], new: Sequence[str]) -> Splice:
    """New lines for old ones that stand from `start` on. What both begin and end with stays as it is there."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    stop = start + len(old)
    return Splice(start + head, stop - tail, new[head : len(new) - tail])
