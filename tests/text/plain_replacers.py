"""The nine replacers said as plainly as can be, whatever it costs: what the fast ones have to agree with."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.text.edit.candidates import SPACES

ENOUGH = 0.65


@dataclass(frozen=True)
class Answer:
    """Which piece of the text is meant and who found it, or why none is."""

    strategy: str | None
    piece: str | None = None
    reason: str | None = None


def find(content: str, wanted: str, replace_all: bool) -> Answer:
    is_there = False
    for name, replacer in REPLACERS.items():
        for piece in replacer(content, wanted):
            if piece not in content:
                continue
            is_there = True
            if too_large(piece, wanted):
                return Answer(None, reason="disproportionate")
            if replace_all or content.find(piece) == content.rfind(piece):
                return Answer(name, piece)
    return Answer(None, reason="ambiguous" if is_there else "not_found")


def too_large(piece: str, wanted: str) -> bool:
    lines = len(wanted.split("\n"))
    if len(piece.split("\n")) >= max(lines + 3, lines * 2):
        return True
    return lines > 1 and len(bare(piece)) > max(len(bare(wanted)) + 500, len(bare(wanted)) * 4)


def simple(content: str, wanted: str) -> Iterator[str]:
    yield wanted


def line_trimmed(content: str, wanted: str) -> Iterator[str]:
    lines = without_empty_end(wanted.split("\n"))
    for block in blocks_of(content, len(lines)):
        if [bare(line) for line in block] == [bare(line) for line in lines]:
            yield "\n".join(block)


def block_anchor(content: str, wanted: str) -> Iterator[str]:
    lines = without_empty_end(wanted.split("\n"))
    blocks = [
        block for block in anchored(content, wanted) if abs(len(block) - len(lines)) <= max(1, int(len(lines) * 0.25))
    ]
    scores = [score(block, lines, is_only=len(blocks) == 1) for block in blocks]
    if scores and max(scores) >= ENOUGH:
        yield "\n".join(blocks[scores.index(max(scores))])


def whitespace_normalized(content: str, wanted: str) -> Iterator[str]:
    words = [re.escape(word) for word in tight(wanted).split(" ")]
    for line in content.split("\n"):
        if tight(line) == tight(wanted):
            yield line
        elif found := re.search(f"[{SPACES}]+".join(words), line):
            yield found.group()
    if "\n" in wanted:
        for block in blocks_of(content, len(wanted.split("\n"))):
            if tight("\n".join(block)) == tight(wanted):
                yield "\n".join(block)


def indentation_flexible(content: str, wanted: str) -> Iterator[str]:
    for block in blocks_of(content, len(wanted.split("\n"))):
        if moved_out(block) == moved_out(wanted.split("\n")):
            yield "\n".join(block)


def escape_normalized(content: str, wanted: str) -> Iterator[str]:
    plain = unescaped(wanted)
    yield plain
    for block in blocks_of(content, len(plain.split("\n"))):
        if unescaped("\n".join(block)) == plain:
            yield "\n".join(block)


def trimmed_boundary(content: str, wanted: str) -> Iterator[str]:
    if bare(wanted) == wanted:
        return
    yield bare(wanted)
    for block in blocks_of(content, len(wanted.split("\n"))):
        if bare("\n".join(block)) == bare(wanted):
            yield "\n".join(block)


def context_aware(content: str, wanted: str) -> Iterator[str]:
    lines = without_empty_end(wanted.split("\n"))
    for block in anchored(content, wanted):
        pairs = [(bare(a), bare(b)) for a, b in zip(block[1:-1], lines[1:-1], strict=False)]
        filled = [a == b for a, b in pairs if a or b]
        if len(block) == len(lines) and (not filled or sum(filled) / len(filled) >= 0.5):
            yield "\n".join(block)


REPLACERS: dict[str, Callable[[str, str], Iterator[str]]] = {
    "SimpleReplacer": simple,
    "LineTrimmedReplacer": line_trimmed,
    "BlockAnchorReplacer": block_anchor,
    "WhitespaceNormalizedReplacer": whitespace_normalized,
    "IndentationFlexibleReplacer": indentation_flexible,
    "EscapeNormalizedReplacer": escape_normalized,
    "TrimmedBoundaryReplacer": trimmed_boundary,
    "ContextAwareReplacer": context_aware,
    "MultiOccurrenceReplacer": simple,
}


def bare(text: str) -> str:
    return text.strip(SPACES)


def tight(text: str) -> str:
    return re.sub(f"[{SPACES}]+", " ", text).strip(" ")


def without_empty_end(lines: list[str]) -> list[str]:
    return lines[:-1] if lines[-1] == "" else lines


def blocks_of(content: str, count: int) -> Iterator[list[str]]:
    lines = content.split("\n")
    for start in range(len(lines) - count + 1):
        yield lines[start : start + count]


def anchored(content: str, wanted: str) -> Iterator[list[str]]:
    if len(wanted.split("\n")) < 3:
        return
    lines, sought = content.split("\n"), without_empty_end(wanted.split("\n"))
    for start, line in enumerate(lines):
        if bare(line) == bare(sought[0]):
            ends = [end for end in range(start + 2, len(lines)) if bare(lines[end]) == bare(sought[-1])]
            yield from [lines[start : end + 1] for end in ends[:1]]


def score(block: list[str], lines: list[str], is_only: bool) -> float:
    pairs = [(bare(a), bare(b)) for a, b in zip(block[1:-1], lines[1:-1], strict=False)]
    alike = [1 - levenshtein(a, b) / max(len(a), len(b)) if a or b else 0.0 for a, b in pairs]
    if not alike:
        return 1.0
    if not is_only:
        return sum(alike) / len(alike)
    total = 0.0
    for value in alike:
        total += value / len(alike)
        if total >= ENOUGH:
            break
    return total


def levenshtein(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for number, char in enumerate(a, 1):
        above, row = row, [number]
        for place, other in enumerate(b, 1):
            row.append(min(above[place] + 1, row[-1] + 1, above[place - 1] + (char != other)))
    return row[-1]


def moved_out(lines: list[str]) -> list[str]:
    shared = min((len(line) - len(line.lstrip(SPACES)) for line in lines if bare(line)), default=0)
    return [line[shared:] if bare(line) else line for line in lines]


def unescaped(text: str) -> str:
    meanings = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"""\\([ntr'"`\\$]|\n)""", lambda found: meanings.get(found[1], found[1]), text)
