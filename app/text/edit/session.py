"""Applies blocks, hunks and whole files to the files they name, one after the other. Nothing is written here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.core.ports import Snapshot
from app.text.edit import search_replace, udiff
from app.text.edit.draft import Draft
from app.text.edit.line_buffer import LineBuffer, Match, Splice
from app.text.edit.search_replace import Block
from app.text.edit.udiff import Ambiguous, Hunk
from app.text.edit.whole_file import Whole
from app.text.file_text import Content, decode

Edit = Block | Hunk | Whole
Reason = Literal["no_file", "no_match", "not_unique", "file_exists", "not_whole"]


@dataclass(slots=True)
class EditedFile:
    """A file as it was, and as the edits have left it so far."""

    name: str
    before: Snapshot | None
    content: Content = field(init=False)
    buffer: LineBuffer = field(init=False)
    exists: bool = field(init=False)

    def __post_init__(self) -> None:
        self.content = decode(self.before.data, self.name) if self.before else Content("")
        self.buffer, self.exists = LineBuffer(self.content.text), self.before is not None

    def draft(self) -> Draft | None:
        """The change to the file; None if there is none."""
        if not self.exists:
            return Draft(path=self.name, before=self.before, old=self.content, new=None) if self.before else None
        new = self.content.with_text(self.buffer.text)
        if self.before is None:
            return Draft(path=self.name, before=None, old=None, new=new)
        if new == self.content:
            return None
        return Draft(path=self.name, before=self.before, old=self.content, new=new, spans=self.buffer.spans())

    def apply(self, match: Match) -> "Applied":
        self.buffer.apply(match.splices)
        self.exists = True
        return Applied(self.name, match.strategy, match.places)

    def append(self, lines: Sequence[str]) -> "Applied":
        """Without lines to find: create the file, or append to it."""
        end = len(self.buffer.lines)
        return self.apply(Match("append" if self.exists else "new_file", (Splice(end, end, lines),)))

    def delete(self, lines: Sequence[str]) -> "Applied | Rejected":
        """If lines are given, they must be all lines of the file."""
        if not self.exists:
            return Rejected(self.name, "no_file")
        if lines and _comparable(lines) != _comparable(self.buffer.lines):
            return Rejected(self.name, "not_whole")
        self.buffer.apply([Splice(0, len(self.buffer.lines), ())])
        self.exists = False
        return Applied(self.name, "delete")


def _comparable(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).strip("\n")


@dataclass(frozen=True, slots=True)
class Applied:
    """An edit was applied to this file by this strategy; `places` is how many places matched.

    `meant` is the file that the edit names, if only another file has such lines.
    """

    name: str
    strategy: str
    places: int = 1
    meant: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """An edit could not be applied to this file. `lines` are the places that match, if there are several."""

    name: str
    reason: Reason
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one edit; edits are numbered from 1."""

    number: int
    edit: Edit
    end: Applied | Rejected


@dataclass(slots=True)
class EditSession:
    """The files that edits name. `name_of` gives a file's canonical name, `load` its content (None: it is missing).

    `replace_all`: a hunk that matches several places is applied to all of them. `check` raises when the call was
    canceled.
    """

    name_of: Callable[[str], str]
    load: Callable[[str], Snapshot | None]
    check: Callable[[], None]
    replace_all: bool = False
    files: dict[str, EditedFile] = field(default_factory=dict)

    def apply(self, edits: Sequence[Edit]) -> list[Outcome]:
        """Apply each edit that matches, in order; each sees the result of those before it."""
        names = {path: self.name_of(path) for path in dict.fromkeys(edit.path for edit in edits)}
        for name in names.values():
            self.check()
            self.files.setdefault(name, EditedFile(name, self.load(name)))
        return [
            Outcome(number, edit, self._apply(edit, self.files[names[edit.path]]))
            for number, edit in enumerate(edits, 1)
        ]

    def drafts(self) -> list[Draft]:
        drafts = (file.draft() for file in self.files.values())
        return [draft for draft in drafts if draft is not None]

    def _apply(self, edit: Edit, file: EditedFile) -> Applied | Rejected:
        self.check()
        match edit:
            case Block():
                return self._apply_block(edit, file)
            case Hunk():
                return self._apply_hunk(edit, file)
            case Whole():
                return file.apply(Match("whole", (Splice(0, len(file.buffer.lines), edit.lines),)))

    def _apply_block(self, block: Block, file: EditedFile) -> Applied | Rejected:
        if block.is_addition:
            return file.append(block.replace)
        match = search_replace.find(file.buffer, block.search, block.replace) if file.exists else None
        if match:
            return file.apply(match)
        return self._apply_elsewhere(block, file) or Rejected(file.name, "no_match" if file.exists else "no_file")

    def _apply_elsewhere(self, block: Block, file: EditedFile) -> Applied | None:
        """Apply a block to another of the files, if it matches exactly one place in all of them."""
        others = [other for other in self.files.values() if other is not file]
        found = [(other, search_replace.find(other.buffer, block.search, block.replace)) for other in others]
        matches = [(other, match) for other, match in found if match]
        if len(matches) != 1 or matches[0][1].places != 1:
            return None
        other, match = matches[0]
        return replace(other.apply(match), meant=file.name)

    def _apply_hunk(self, hunk: Hunk, file: EditedFile) -> Applied | Rejected:
        if hunk.creates and file.before is not None and file.exists:
            return Rejected(file.name, "file_exists")
        if hunk.deletes:
            return file.delete(hunk.old)
        if not any(line.strip() for line in hunk.old):
            return file.append(hunk.new)
        if not file.exists:
            return Rejected(file.name, "no_file")
        found = udiff.find(file.buffer, hunk.lines, self.replace_all)
        if isinstance(found, Ambiguous):
            return Rejected(file.name, "not_unique", found.lines)
        return file.apply(found) if found else Rejected(file.name, "no_match")
