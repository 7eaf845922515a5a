"""Reads the output of ripgrep: names, lines and counts of files, and why it could not search.

It is run with `--null`, so that any file name can be distinguished from the rest. It works in parallel, so its output
is not sorted.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from app.core.errors import InvalidArgs
from app.core.ports import SearchResult
from app.core.util.path_text import printable

FAILED = 2
LINE_BYTES = 500
# Ripgrep leaves out the rest of a longer line; its note about that is cut off here.
LINE_OPTIONS = (
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
    """A line of a file; one that does not match is context."""

    number: int
    is_match: bool
    data: bytes

    @property
    def text(self) -> str:
        text = self.data.removesuffix(b"\r").decode(errors="replace")
        return text.encode()[:LINE_BYTES].decode(errors="ignore")


@dataclass(slots=True)
class Hit:
    """A file and its matches; `name` is relative to the searched folder."""

    name: str
    lines: list[Line] = field(default_factory=list)
    count: int = 0
    is_binary: bool = False


def require_success(found: SearchResult) -> None:
    """Raises `InvalidArgs` with ripgrep's reason when it could not search at all."""
    if found.code == FAILED and found.stderr:
        message = found.stderr.decode(errors="replace").removeprefix("rg: ").strip()
        error = REASON.search(message)
        reason = error[1] if error else message.partition("\n")[0]
        raise InvalidArgs(f"The search failed: {reason.rstrip('.')}.")


def read_names(found: SearchResult) -> list[str]:
    """The output of `--files` and `--files-with-matches`. A name that is cut off is dropped."""
    whole = found.stdout[: max(found.stdout.rfind(b"\0"), 0)]
    return os.fsdecode(whole).removeprefix("./").split("\0./") if whole else []


def read_files(found: SearchResult) -> Iterator[Hit]:
    """The same, as hits."""
    return (Hit(name) for name in read_names(found))


def read_counts(found: SearchResult) -> Iterator[Hit]:
    """The output of `--count`."""
    for name, count in re.findall(rb"([^\0]+)\0(\d+)\r?\n", found.stdout):
        yield Hit(_name(name), count=int(count))


def read_lines(found: SearchResult) -> Iterator[Hit]:
    """The output with `LINE_OPTIONS`. All lines of one file come together."""
    end = found.stdout.rfind(b"\n") + 1  # a line that is cut off is dropped
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
    """Notes about missing matches: files that rules forbid, and those that cannot be read."""
    notes = []
    if left_out:
        files, them = ("1 file", "it") if left_out == 1 else (f"{left_out} files", "them")
        notes.append(f"[{files} left out: rules do not allow this call to read {them}]")
    if found.code == FAILED:
        notes.append("[some files or folders could not be read and were not searched]")
    return notes


def sort_key(name: str) -> bytes:
    """Sorts paths folder by folder and by bytes, so that the order does not depend on the locale."""
    return os.fsencode(name).replace(b"/", b"\0")


def canonical_name(folder: str, name: str) -> str:
    """The canonical name of a file that was found in a folder, which is given by its canonical name."""
    return printable(name if folder == "." else f"{folder.rstrip('/')}/{name}")


def _name(data: bytes) -> str:
    return os.fsdecode(data.removeprefix(b"./"))
