"""A strict parser for patches (V4A): exactly the texts that `GRAMMAR` describes.

    patch      `*** Begin Patch`, one or more operations, `*** End Patch`; the last line end may be missing
    operation  `*** Add File: path`, then one or more lines that begin with `+`
               `*** Delete File: path`
               `*** Update File: path`, then `*** Move to: path` if the file moves, then its hunks if any, then
               `*** End of File` if the last hunk is at the end of the file
    hunk       headers, then changed lines; either may be missing
    header     `@@` alone, or `@@ ` and a line above the place; each of several narrows it down
    changed    a line that begins with `+` (added), `-` (deleted) or a space (context)

`lenient` converts other texts that models send to this grammar first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.core.errors import InvalidArgs

BEGIN = "*** Begin Patch"
END = "*** End Patch"
ADD = "*** Add File: "
DELETE = "*** Delete File: "
UPDATE = "*** Update File: "
MOVE = "*** Move to: "
END_OF_FILE = "*** End of File"
HEADER = "@@"
MARKS = ("+", "-", " ")
MAX_SHOWN_LENGTH = 160

GRAMMAR = """\
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""


@dataclass(frozen=True, slots=True)
class Hunk:
    """A change at one place of a file. Lines have their marks; `line` is where it begins in the patch.

    `headers` are lines above the place, in order, without blank ones.
    """

    line: int
    headers: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class Add:
    line: int
    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    line: int
    path: str


@dataclass(frozen=True, slots=True)
class Update:
    line: int
    path: str
    move_to: str | None = None
    hunks: tuple[Hunk, ...] = ()


Operation = Add | Delete | Update


def parse(text: str) -> list[Operation]:
    """The operations of a patch. Raises `InvalidArgs` with the number of the invalid line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return parse_lines(lines, range(1, len(lines) + 1))


def parse_lines(lines: Sequence[str], numbers: Sequence[int]) -> list[Operation]:
    """The same for lines; `numbers` are those that errors name."""
    return _Parser(lines, numbers).patch()


def paths_of(operations: Sequence[Operation]) -> list[str]:
    """Every path that a patch touches, in order."""
    paths = list[str]()
    for operation in operations:
        paths.append(operation.path)
        if isinstance(operation, Update) and operation.move_to is not None:
            paths.append(operation.move_to)
    return paths


def syntax_error(number: int, line: str, what: str) -> InvalidArgs:
    shown = line if len(line) <= MAX_SHOWN_LENGTH else line[:MAX_SHOWN_LENGTH] + "…"
    return InvalidArgs(
        f"The patch cannot be read at line {number}, `{shown}`: {what}", details={"line": number, "text": shown}
    )


@dataclass(slots=True)
class _Parser:
    lines: Sequence[str]
    numbers: Sequence[int]
    at: int = 0
    operations: list[Operation] = field(default_factory=list)

    def patch(self) -> list[Operation]:
        if not self.lines or self.lines[0] != BEGIN:
            raise syntax_error(1, self.lines[0] if self.lines else "", f"the first line must be `{BEGIN}`.")
        self.at = 1
        while self._here() != END:
            self.operations.append(self._operation())
        if not self.operations:
            raise syntax_error(self._number, END, "the patch changes no file; name one before it.")
        self.at += 1
        if self.at < len(self.lines):
            raise syntax_error(self._number, self.lines[self.at], f"nothing may follow `{END}`; send one patch.")
        return self.operations

    @property
    def _number(self) -> int:
        return self.numbers[self.at]

    def _here(self) -> str:
        if self.at == len(self.lines):
            last = self.at - 1
            raise syntax_error(
                self.numbers[last],
                self.lines[last],
                f"the patch ends here without `{END}`; it may have been cut off, send all of it.",
            )
        return self.lines[self.at]

    def _operation(self) -> Operation:
        line, number = self._here(), self._number
        for marker, read in ((ADD, self._add), (DELETE, Delete), (UPDATE, self._update)):
            if line.startswith(marker) and len(line) > len(marker):
                self.at += 1
                return read(number, line[len(marker) :])
        raise syntax_error(number, line, _expected(line, self.operations[-1] if self.operations else None))

    def _add(self, number: int, path: str) -> Add:
        start = self.at
        while self._here().startswith("+"):
            self.at += 1
        if self.at == start:
            raise syntax_error(number, ADD + path, "an added file needs its lines, each beginning with `+`.")
        return Add(number, path, tuple(line[1:] for line in self.lines[start : self.at]))

    def _update(self, number: int, path: str) -> Update:
        move_to, line = None, self._here()
        if line.startswith(MOVE) and len(line) > len(MOVE):
            move_to = line[len(MOVE) :]
            self.at += 1
        hunks = list[Hunk]()
        while self._is_header() or self._here().startswith(MARKS):
            hunks.append(self._hunk())
        if hunks and self._here() == END_OF_FILE:
            self.at += 1
            last = hunks[-1]
            hunks[-1] = Hunk(last.line, last.headers, last.lines, is_at_end=True)
        return Update(number, path, move_to, tuple(hunks))

    def _hunk(self) -> Hunk:
        number, headers = self._number, list[str]()
        while self._is_header():
            headers.append(self._here()[len(HEADER) + 1 :])
            self.at += 1
        start = self.at
        while self._here().startswith(MARKS):
            self.at += 1
        return Hunk(number, tuple(filter(str.strip, headers)), tuple(self.lines[start : self.at]))

    def _is_header(self) -> bool:
        line = self._here()
        return line == HEADER or (line.startswith(f"{HEADER} ") and len(line) > len(HEADER) + 1)


def _expected(line: str, before: Operation | None) -> str:
    """What is expected here instead."""
    if line.startswith((ADD.rstrip(), DELETE.rstrip(), UPDATE.rstrip(), MOVE.rstrip())):
        return "after the colon there must be a space and a path, and a move directly follows its update."
    next_operation = f"`{ADD}path`, `{DELETE}path`, `{UPDATE}path` or `{END}`"
    match before:
        case Add():
            return f"each line of an added file begins with `+`, also an empty one; after them comes {next_operation}."
        case Update(hunks=(*_, Hunk(is_at_end=True))):
            return f"after `{END_OF_FILE}` there can only be {next_operation}."
        case Update():
            return (
                "each line of a hunk begins with a space (context), `-` (deleted) or `+` (added), and a hunk with `@@`."
            )
    return f"there must be {next_operation}."
