"""Edits: blocks, hunks and whole files, made one after the other to the files they are for. Nothing is written here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.core.ports import Snapshot
from app.text.edit import search_replace, udiff
from app.text.edit.draft import Draft
from app.text.edit.line_buffer import LineBuffer, Match, Splice
from app.text.edit.search_replace import Block
from app.text.edit.udiff import Hunk, Unclear
from app.text.edit.whole_file import Whole
from app.text.file_text import Content, read

Edit = Block | Hunk | Whole
Reason = Literal["no_file", "no_match", "not_unique", "file_exists", "not_whole"]


@dataclass(slots=True)
class EditedFile:
    """A file on the desk: as it was, and as the edits have made it so far."""

    name: str
    before: Snapshot | None
    content: Content = field(init=False)
    script: LineBuffer = field(init=False)
    exists: bool = field(init=False)

    def __post_init__(self) -> None:
        self.content = read(self.before.data, self.name) if self.before else Content("")
        self.script, self.exists = LineBuffer(self.content.text), self.before is not None

    def draft(self) -> Draft | None:
        """What it has become; None when nothing did."""
        if not self.exists:
            return Draft(path=self.name, before=self.before, old=self.content, new=None) if self.before else None
        new = self.content.with_text(self.script.text)
        if self.before is None:
            return Draft(path=self.name, before=None, old=None, new=new)
        if new == self.content:
            return None
        return Draft(path=self.name, before=self.before, old=self.content, new=new, spans=self.script.spans())


@dataclass(frozen=True, slots=True)
class Applied:
    """An edit was made: in this file, found by this rule, in the first or all of so many places.

    `meant` is the file it is for, when it was made in another one because only that has such lines.
    """

    name: str
    strategy: str
    places: int = 1
    meant: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An edit could not be made to this file. `lines` are places it may be for, when there are several."""

    name: str
    reason: Reason
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an edit; they are numbered from 1."""

    number: int
    edit: Edit
    end: Applied | Rejected


@dataclass(slots=True)
class EditSession:
    """The files that edits name. `name_of` gives a file's own name, `load` what is in it (None: there is none).

    `every`: a hunk that fits several places is made in all of them. `go_on` raises when nobody waits any more.
    """

    name_of: Callable[[str], str]
    load: Callable[[str], Snapshot | None]
    go_on: Callable[[], None]
    every: bool = False
    sheets: dict[str, EditedFile] = field(default_factory=dict)

    def make(self, edits: Sequence[Edit]) -> list[Outcome]:
        """Make each edit that fits, in order; each sees what those before it made."""
        names = {path: self.name_of(path) for path in dict.fromkeys(edit.path for edit in edits)}
        for name in names.values():
            self.go_on()
            self.sheets.setdefault(name, EditedFile(name, self.load(name)))
        return [self._make(number, edit, self.sheets[names[edit.path]]) for number, edit in enumerate(edits, 1)]

    def drafts(self) -> list[Draft]:
        drafts = (sheet.draft() for sheet in self.sheets.values())
        return [draft for draft in drafts if draft is not None]

    def _make(self, number: int, edit: Edit, sheet: EditedFile) -> Outcome:
        self.go_on()
        match edit:
            case Block():
                return Outcome(number, edit, self._block(edit, sheet))
            case Hunk():
                return Outcome(number, edit, self._hunk(edit, sheet))
            case Whole():
                rewritten = Match("whole", (Splice(0, len(sheet.script.lines), edit.lines),))
                return Outcome(number, edit, _put(sheet, rewritten))

    def _block(self, block: Block, sheet: EditedFile) -> Applied | Rejected:
        if block.is_addition:
            return _add(sheet, block.replace)
        found = search_replace.find(sheet.script, block.search, block.replace) if sheet.exists else None
        if found:
            return _put(sheet, found)
        return self._elsewhere(block, sheet) or Rejected(sheet.name, "no_match" if sheet.exists else "no_file")

    def _elsewhere(self, block: Block, sheet: EditedFile) -> Applied | None:
        """In another file that the edits name, if that is one place and no more."""
        others = [other for other in self.sheets.values() if other is not sheet]
        found = [(other, search_replace.find(other.script, block.search, block.replace)) for other in others]
        fitting = [(other, match) for other, match in found if match]
        if len(fitting) != 1 or fitting[0][1].places != 1:
            return None
        return replace(_put(*fitting[0]), meant=sheet.name)

    def _hunk(self, hunk: Hunk, sheet: EditedFile) -> Applied | Rejected:
        if hunk.makes and sheet.before is not None and sheet.exists:
            return Rejected(sheet.name, "file_exists")
        if hunk.removes:
            return _remove(sheet, hunk.old)
        if not any(line.strip() for line in hunk.old):
            return _add(sheet, hunk.new)
        if not sheet.exists:
            return Rejected(sheet.name, "no_file")
        found = udiff.find(sheet.script, hunk.lines, self.every)
        if isinstance(found, Unclear):
            return Rejected(sheet.name, "not_unique", found.places)
        return _put(sheet, found) if found else Rejected(sheet.name, "no_match")


def _put(sheet: EditedFile, match: Match) -> Applied:
    sheet.script.make(match.splices)
    sheet.exists = True
    return Applied(sheet.name, match.strategy, match.places)


def _add(sheet: EditedFile, lines: Sequence[str]) -> Applied:
    """Nothing is looked for: a new file, or more at the end of the one that is there."""
    end = len(sheet.script.lines)
    return _put(sheet, Match("append" if sheet.exists else "new_file", (Splice(end, end, lines),)))


def _remove(sheet: EditedFile, lines: Sequence[str]) -> Applied | Rejected:
    """A file is taken away by its name; if its lines are told, they must be all that it has."""
    if not sheet.exists:
        return Rejected(sheet.name, "no_file")
    if lines and _plain(lines) != _plain(sheet.script.lines):
        return Rejected(sheet.name, "not_whole")
    sheet.script.make([Splice(0, len(sheet.script.lines), ())])
    sheet.exists = False
    return Applied(sheet.name, "delete")


def _plain(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).strip("\n")
