"""SR."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from app.core.errors import InvalidArgs
from app.text.edit.fences import LOOKED_BACK, name_before, opening, quote
from app.text.edit.line_buffer import Endless, LineBuffer, Match, Splice, indented, outdented, replacing, shifted_places

HEAD = re.compile(r"(<{5,9}) SEARCH>?$")
DIVIDER = re.compile(r"={5,9}$")
UPDATED = re.compile(r">{5,9} REPLACE$")

UNNAMED = "No file is named: write its path alone on the line before the opening fence, or give it in `file_path`."
UNENDED = "Expected `>>>>>>> REPLACE` or `=======`"
UNDIVIDED = "Expected `=======`"
UNCLEAR = (
    "Expected one `=======` only: more than one line here may divide the block. Write its three markers with another"
    " number of signs (5 to 9) than the lines of the file have."
)

DOTS = "..."

Lines = Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """One edit; `line` is where it begins in the text, the first is 1."""

    path: str
    search: tuple[str, ...]
    replace: tuple[str, ...]
    line: int

    @property
    def is_addition(self) -> bool:
        """Whether nothing is looked for: a new file, or more at the end of one."""
        return not any(line.strip() for line in self.search)

    def __str__(self) -> str:
        return "\n".join(("<<<<<<< SEARCH", *self.search, "=======", *self.replace, ">>>>>>> REPLACE"))


def parse(content: str, path: str | None = None) -> tuple[list[Block], list[str]]:
    """The blocks of a text, and the shell commands it proposes; `path` is the file of blocks that name none."""
    lines = content.replace("\r\n", "\n").split("\n")
    blocks, commands, at = list[Block](), list[str](), 0
    while at < len(lines):
        if _is_shell(lines, at):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip().startswith("```")), len(lines))
            commands.append("\n".join(lines[at + 1 : end]))
            at = end
        elif HEAD.match(lines[at].strip()):
            path = name_before(lines[max(0, at - LOOKED_BACK) : at]) or path
            if path is None:
                raise _unreadable(lines, at, UNNAMED)
            search, replace, end = _split_block(lines, at)
            blocks.append(Block(path, tuple(search), tuple(replace), at + 1))
            at = end
        at += 1
    if not blocks:
        raise _unreadable(lines, len(lines) - 1, "Expected a block that begins with `<<<<<<< SEARCH`; there is none")
    return blocks, commands


def _is_shell(lines: Sequence[str], at: int) -> bool:
    """Whether a shell's listing begins here; one with a block in its first two lines is a file's."""
    fence = opening(lines[at].strip())
    if fence is None or not fence.is_shell:
        return False
    return not any(HEAD.match(line.strip()) for line in lines[at + 1 : at + 3])


def _split_block(lines: Sequence[str], head: int) -> tuple[Sequence[str], Sequence[str], int]:
    """What a block looks for, what comes instead, and its last line."""
    end, dividers = head + 1, list[int]()
    while end < len(lines) and not HEAD.match(line := lines[end].strip()) and not UPDATED.match(line):
        if DIVIDER.match(line):
            dividers.append(end)
        end += 1
    is_ended = end < len(lines) and UPDATED.match(lines[end].strip()) is not None
    if not dividers:
        raise _unreadable(lines, min(end, len(lines) - 1), UNDIVIDED)
    if not is_ended and len(dividers) == 1:
        raise _unreadable(lines, min(end, len(lines) - 1), UNENDED)
    middle, stop = _divided(lines, head, dividers, end) if is_ended else (dividers[0], dividers[1])
    return lines[head + 1 : middle], lines[middle + 1 : stop], end if is_ended else stop


def _divided(lines: Sequence[str], head: int, dividers: Sequence[int], end: int) -> tuple[int, int]:
    """Which line divides a block that has its last marker, and where what comes instead ends."""
    if len(dividers) == 2 and dividers[1] == end - 1:
        return dividers[0], dividers[1]
    signs = len(lines[head].strip().split()[0])
    alike = [at for at in dividers if len(lines[at].strip()) == signs]
    if len(dividers) > 1 and len(alike) != 1:
        raise _unreadable(lines, dividers[1], UNCLEAR)
    return (dividers[0] if len(dividers) == 1 else alike[0]), end


def _unreadable(lines: Sequence[str], at: int, expected: str) -> InvalidArgs:
    told = f"The content cannot be read as SEARCH/REPLACE blocks, see its line {at + 1}:\n"
    return InvalidArgs(told + quote(lines, at, expected), details={"line": at + 1})


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines as dots part them; blank lines before dots belong to them."""

    parts: list[Lines]
    dots: list[Lines]


def find(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return (
        _in_place(script, search, replace)
        or _without_blank_line(script, search, replace)
        or _elided(script, search, replace)
        or _unwrapped(script, search, replace)
    )


def _in_place(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    return _exact(script, search, replace) or _shifted(script, search, replace)


def _exact(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    start = next(script.places(search), None)
    if start is None:
        return None
    return Match("exact", (Splice(start, start + len(search), replace),), script.count(search))


def _shifted(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = outdented(search, replace)
    found, candidates = list[tuple[int, str]](), shifted_places(script, old)
    with suppress(Endless):
        for place in candidates:
            found.append(place)
    if not found:
        return None
    start, add = found[0]
    splice = replacing(start, old, new)
    return Match("indentation", (Splice(splice.start, splice.stop, indented(splice.lines, add)),), len(found))


def _without_blank_line(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    if len(search) <= 2 or search[0].strip():
        return None
    found = _in_place(script, search[1:], replace)
    return found and Match("leading_blank_line", found.splices, found.places)


def _elided(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    old, new = _pieces(search), _pieces(replace)
    if not old.dots or old.dots != new.dots:
        return None
    splices, end = list[Splice](), len(script.lines)
    for part, instead in zip(old.parts, new.parts, strict=True):
        if part:
            found = list(islice(script.places(part), 2))
            if len(found) != 1:
                return None
            splices.append(Splice(found[0], found[0] + len(part), instead))
        elif instead:
            splices.append(Splice(end, end, instead))
    ordered = sorted(splices, key=lambda splice: (splice.start, splice.stop))
    is_apart = all(one.stop <= next_one.start for one, next_one in pairwise(ordered))
    return Match("elision", tuple(splices)) if splices and is_apart else None


def _pieces(lines: Lines) -> Pieces:
    pieces, start = Pieces([], []), 0
    for at, line in enumerate(lines):
        if line.lstrip() != DOTS:
            continue
        end = at
        while end > start and not lines[end - 1].strip():
            end -= 1
        pieces.parts.append(lines[start:end])
        pieces.dots.append(lines[end : at + 1])
        start = at + 1
    pieces.parts.append(lines[start:])
    return pieces


def _unwrapped(script: LineBuffer, search: Lines, replace: Lines) -> Match | None:
    inner = _inside(search)
    if inner is search or not any(line.strip() for line in inner):
        return None
    found = _in_place(script, inner, _inside(replace))
    return found and Match("unwrapped", found.splices, found.places)


def _inside(lines: Lines) -> Lines:
    """What stands between fences, if these lines begin and end with them."""
    fence = opening(lines[0].strip()) if len(lines) > 1 else None
    return lines[1:-1] if fence and lines[-1].strip() == fence.closing else lines
