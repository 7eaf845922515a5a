"""Long scripts, cut into pieces that are read one after the other.

What is broken costs the parser the square of its length, and nobody knows what is broken before it was read. So no
piece is long: here-documents that the shell does not look into are taken out, and the rest is cut where a line ends.
Wherever that is, it is right: a piece that is whole by itself leaves the shell as it found it, and one that is not
whole is no bash.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Tree

from app.text.bash.syntax_tree import Unreadable, grow
from app.text.bash.unclear import Doubtful

SIZES = (4_000, 8_000, 16_000)
LONGEST_PIECE = 20_000
LONG_DOCUMENT = 400
PLACEHOLDER = b"here-document\n"

_OPENED = re.compile(rb"<<(-?)[ \t]*(?:'(\w+)'|\"(\w+)\"|\\(\w+)|(\w+))(?=[ \t\n;&|<>)]|$)")
_LIVE = re.compile(rb"[$`\\]")
_GOING_ON = re.compile(rb"(?:\\|\||&&|\(|\{)[ \t]*$")
_CONTINUING = re.compile(rb"[ \t\n})#]|(?:then|else|elif|fi|do|done|esac|in)\b|$")


@dataclass(slots=True)
class ElidedScript:
    """A script without its long here-documents: `texts` are those, by where a placeholder stands for them."""

    source: bytes
    texts: dict[int, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)


def elide(source: bytes, *, keeps_documents: bool = False) -> ElidedScript:
    """Takes long here-documents out, unless they are to be kept, and marks where lines may begin a piece."""
    elided, kept = ElidedScript(b""), bytearray()
    lines, at = re.findall(rb"[^\n]*\n|[^\n]+", source), 0
    ends = _Ends(lines)
    while at < len(lines):
        line = lines[at]
        kept += line
        at += 1
        end = ends.after(at, line)
        if end is not None:
            body = b"".join(lines[at:end])
            if len(body) > LONG_DOCUMENT and not keeps_documents and not _is_live(line, body):
                elided.texts[len(kept)] = body
                body = PLACEHOLDER
            kept += body + lines[end]
            at = end + 1
        if at < len(lines) and not _GOING_ON.search(lines[at - 1].rstrip(b"\n")) and not _CONTINUING.match(lines[at]):
            elided.cuts.append(len(kept))
    elided.source = bytes(kept)
    elided.cuts.append(len(kept))
    return elided


class _Ends:
    """Where here-documents may end: the numbers of lines by their text, with and without tabs before it."""

    def __init__(self, lines: list[bytes]) -> None:
        self.whole = dict[bytes, list[int]]()
        self.stripped = dict[bytes, list[int]]()
        for number, line in enumerate(lines):
            text = line.removesuffix(b"\n")
            self.whole.setdefault(text, []).append(number)
            self.stripped.setdefault(text.lstrip(b"\t"), []).append(number)

    def after(self, at: int, line: bytes) -> int | None:
        """The line, from this number on, that ends the here-document which a line seems to open."""
        found = _OPENED.search(line)
        if found is None:
            return None
        tag = next(filter(None, found.groups()[1:]))
        numbers = (self.stripped if found[1] else self.whole).get(tag, [])
        first = bisect_left(numbers, at)
        return numbers[first] if first < len(numbers) else None


def _is_live(line: bytes, body: bytes) -> bool:
    """Whether the shell would look into a here-document and find something there."""
    found = _OPENED.search(line)
    return found is not None and found[5] is not None and _LIVE.search(body) is not None


def pieces(elided: ElidedScript) -> Iterator[tuple[int, bytes, Tree]]:
    """The trees of a script one after the other, each with where it begins. Raises `Doubtful`."""
    source, at = elided.source, 0
    if len(source) <= LONGEST_PIECE:
        yield 0, *grow(source)
        return
    while at < len(source):
        end, piece, tree = _next(source, at, elided.cuts)
        yield at, piece, tree
        at = end


def _next(source: bytes, at: int, cuts: list[int]) -> tuple[int, bytes, Tree]:
    """The next piece that is whole; when a short one is not, a longer one may be."""
    tried = at
    for size in SIZES:
        end = cuts[min(bisect_left(cuts, at + size), len(cuts) - 1)]
        if end - at > LONGEST_PIECE:
            end = cuts[max(bisect_right(cuts, at + LONGEST_PIECE) - 1, 0)]
        if end <= tried or end - at > LONGEST_PIECE:
            continue
        try:
            return end, *grow(source[at:end])
        except Unreadable:
            tried = end
    raise Doubtful("a part of the script is too long to be read, or is not bash")
