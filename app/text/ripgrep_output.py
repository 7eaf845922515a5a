"""What ripgrep says, read: names, lines and counts of files, and why it could not search.

It is asked for `--null`, so that no name of a file can be taken for anything else. It works in parallel, and
whoever wants an order makes it here.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from app.core.errors import InvalidArgs
from app.core.ports import SearchResult

TROUBLE = 2
LINE_BYTES = 500
# The rest of a line that is longer stays with ripgrep; what it puts there instead is cut off here.
LINES = (
    "--line-number",
    "--no-heading",
    "--no-context-separator",
    f"--max-columns={LINE_BYTES + 12}",
    "--max-columns-preview",
)
RECORD = re.compile(
    rb"([^\0]+?)(?:\0(\d+)([:-])([^\n]*)"
    rb"|: (?:WARNING: stopped searching binary file after match|binary file matches) \(found [^\n]*)\n"
)
REASON = re.compile(r"^error: (.+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file; one that does not match is there because of its neighbour."""

    number: int
    is_match: bool
    data: bytes

    @property
    def text(self) -> str:
        text = self.data.removesuffix(b"\r").decode(errors="replace")
        return text.encode()[:LINE_BYTES].decode(errors="ignore")


@dataclass(slots=True)
class Hit:
    """A file with what was found in it; `name` is relative to what was searched."""

    name: str
    lines: list[Line] = field(default_factory=list)
    count: int = 0
    is_binary: bool = False


def require_searched(found: SearchResult) -> None:
    """Whether ripgrep could search at all. Raises `InvalidArgs` with its reason when it could not."""
    if found.code == TROUBLE and found.stderr:
        said = found.stderr.decode(errors="replace").removeprefix("rg: ").strip()
        reason = REASON.search(said)
        told = reason[1] if reason else said.partition("\n")[0]
        raise InvalidArgs(f"The search cannot be done like this: {told.rstrip('.')}.")


def names(found: SearchResult) -> list[str]:
    """The files of a list of names. One that was cut off in the middle does not count."""
    whole = found.stdout[: max(found.stdout.rfind(b"\0"), 0)]
    return os.fsdecode(whole).removeprefix("./").split("\0./") if whole else []


def files(found: SearchResult) -> Iterator[Hit]:
    """The same as hits, of which no more is known."""
    return (Hit(name) for name in names(found))


def counts(found: SearchResult) -> Iterator[Hit]:
    """The files of a list of counts."""
    for name, count in re.findall(rb"([^\0]+)\0(\d+)\r?\n", found.stdout):
        yield Hit(_name(name), count=int(count))


def lines(found: SearchResult) -> Iterator[Hit]:
    """The files of a list of lines. Ripgrep says all about one file before it goes on to the next."""
    end = found.stdout.rfind(b"\n") + 1  # what was cut off in the middle does not count
    for name, records in groupby(RECORD.finditer(found.stdout, 0, end), lambda record: record[1]):
        hit = Hit(_name(name))
        for record in records:
            if record[2] is None:
                hit.is_binary = True
            else:
                hit.lines.append(Line(int(record[2]), record[3] == b":", record[4]))
        hit.count = sum(line.is_match for line in hit.lines)
        yield hit


def notes(found: SearchResult, left_out: int) -> list[str]:
    """What to say about what is not there: files that rules keep from the caller, and what cannot be read at all."""
    told = []
    if left_out:
        files, them = ("1 file", "it") if left_out == 1 else (f"{left_out} files", "them")
        told.append(f"[{files} left out: rules do not let this call read {them}]")
    if found.code == TROUBLE:
        told.append("[some files or folders could not be read and were not searched]")
    return told


def place(name: str) -> bytes:
    """What to sort names of files by: folder by folder, and by bytes, so that it is the same in every language."""
    return os.fsencode(name).replace(b"/", b"\0")


def joined(folder: str, name: str) -> str:
    """The canonical name of a file that was found in a folder of a canonical name."""
    return printable(name if folder == "." else f"{folder.rstrip('/')}/{name}")


def printable(name: str) -> str:
    """A name as text: rules match it, and models read it."""
    return os.fsencode(name).decode(errors="replace")


def one_line(name: str) -> str:
    """A name with a line break in it must not look like two."""
    return "".join(repr(char)[1:-1] if ord(char) < 32 or char in "\x7f\x85\u2028\u2029" else char for char in name)


def _name(data: bytes) -> str:
    return os.fsdecode(data.removeprefix(b"./"))
