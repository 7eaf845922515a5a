"""Apply."""

import errno
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.core.errors import CallError, FileFailed, PatchMismatch
from app.core.ports import Snapshot
from app.text.edit.diff import Lines, Span, lines_of
from app.text.edit.draft import Draft
from app.text.edit.nearest_lines import nearest_in
from app.text.edit.reindent import reindent
from app.text.file_text import Content, read
from app.text.patch.parse import Hunk
from app.text.patch.seek import Match, SeekableText

MOST_LINES = 20
MOST_COLUMNS = 200


@dataclass(frozen=True, slots=True)
class ExpectedLines:
    """Which hunk it is about, of how many in which file."""

    path: str
    number: int
    total: int


def header_missing(sheet: SeekableText, wanted: ExpectedLines, header: str, here: int) -> PatchMismatch:
    what = f"the line of its `@@` header is not there{_after(here)}"
    return _mismatch(sheet, wanted, what, [header], _elsewhere(sheet, [header], here))


def lines_missing(
    sheet: SeekableText, wanted: ExpectedLines, old: Sequence[str], new: Sequence[str], here: int, *, is_at_end: bool
) -> PatchMismatch:
    what = f"these lines are not {'at the end of the file' if is_at_end else f'there{_after(here)}'}"
    why = _applied(sheet, old, new) or _elsewhere(sheet, old, here, is_at_end=is_at_end)
    return _mismatch(sheet, wanted, what, old, why)


def _mismatch(
    sheet: SeekableText, wanted: ExpectedLines, what: str, looked_for: Sequence[str], why: str | None
) -> PatchMismatch:
    lines = Lines(sheet.text)
    near = nearest_in(sheet.text, lines, looked_for)
    if why is None and near is None:
        why = "Nothing in the file is like that; read the file again and take the lines from it."
    elif why is None and near is not None:
        why = f"The nearest lines of the file are these:\n{_numbered(lines, near)}"
    text = _shown(looked_for)
    return PatchMismatch(
        f"{wanted.path}: hunk {wanted.number} of {wanted.total} does not fit; {what}:\n{text}\n{why}",
        details={
            "path": wanted.path,
            "hunk": wanted.number,
            "looked_for": text,
            "nearest": near and {"line": near.start + 1, "text": _shown(lines[near.start : near.stop])},
        },
    )


def _applied(sheet: SeekableText, old: Sequence[str], new: Sequence[str]) -> str | None:
    if not any(map(str.strip, set(new) - set(old))):
        return None
    found = sheet.seek(new, 0)
    if found is None:
        return None
    return f"What it would make of them is there already, at line {found.line + 1}; it seems to be applied."


def _elsewhere(sheet: SeekableText, looked_for: Sequence[str], here: int, *, is_at_end: bool = False) -> str | None:
    found = sheet.seek(looked_for, 0) if here or is_at_end else None
    if found is None:
        return None
    if found.line >= here:
        return f"That is at line {found.line + 1}, but other lines follow; leave `*** End of File` out."
    return (
        f"That is at line {found.line + 1}, but the hunk or header before it reaches to line {here}; hunks come in the"
        " order of the file, and the line of a header is not repeated in its hunk."
    )


def _after(here: int) -> str:
    return f" after line {here}" if here else ""


def _numbered(lines: Sequence[str], near: range) -> str:
    shown = [f"{number + 1}: {_cut(lines[number])}" for number in near[:MOST_LINES]]
    return "\n".join(shown + (["…"] if len(near) > MOST_LINES else []))


def _shown(lines: Sequence[str]) -> str:
    return "\n".join([*map(_cut, lines[:MOST_LINES]), *(["…"] if len(lines) > MOST_LINES else [])])


def _cut(line: str) -> str:
    line = line.removesuffix("\n")
    return line if len(line) <= MOST_COLUMNS else line[:MOST_COLUMNS] + "…"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The text after all hunks. `spans` and `lines` (before them) are what a diff needs, where they are known."""

    text: str
    spans: list[Span] | None
    lines: Lines | None = None


@dataclass(slots=True)
class _Edit:
    """The lines from `start` to before `end` become these; none of them has its end."""

    start: int
    end: int
    new: list[str]


@dataclass(frozen=True, slots=True)
class _Sides:
    """What a hunk looks for and what it makes of it; `kept` are the lines on both sides, by their places there."""

    old: list[str]
    new: list[str]
    kept: list[tuple[int, int]]


def fit(text: str, hunks: Sequence[Hunk], path: str) -> Fitted:
    """Make these changes to the text of a file. Raises `PatchMismatch` when one of them has no place in it."""
    has_cr = "\r" in text
    sheet = SeekableText(text.replace("\r\n", "\n") if has_cr else text)
    # Each CRLF made it shorter by one: fewer than there are ends now, and some were another kind.
    if has_cr and ("\r" in sheet.text or len(text) - len(sheet.text) < sheet.ends):
        return _fit_mixed(text, hunks, path)
    edits = _edits(sheet, hunks, path)
    after = _rewritten(sheet.count, edits, sheet.piece, "\n")
    if not has_cr:
        spans = _spans(edits, lambda start, end: lines_of(sheet.piece(start, end)), "\n")
        return Fitted(after, spans, Lines(text, sheet.count, sheet.exact.offset))
    spans = _spans(edits, lambda start, end: lines_of(sheet.piece(start, end).replace("\n", "\r\n")), "\r\n")
    return Fitted(after.replace("\n", "\r\n"), spans)


def _fit_mixed(text: str, hunks: Sequence[Hunk], path: str) -> Fitted:
    """The same where lines end in several ways: each keeps its own."""
    lines = list(io.StringIO(text, newline=""))
    bare = [line.rstrip("\r\n") for line in lines]
    sheet = SeekableText("\n".join(bare) + ("\n" if lines[-1] != bare[-1] else ""))
    edits, line_end = _edits(sheet, hunks, path), lines[0][len(bare[0]) :]
    after = _rewritten(sheet.count, edits, lambda start, end: "".join(lines[start:end]), line_end)
    # In a diff a CR alone ends no line, so these edits would count other lines than it does.
    is_told = text.count("\r") == text.count("\r\n")
    return Fitted(after, _spans(edits, lambda start, end: lines[start:end], line_end) if is_told else None)


def _edits(sheet: SeekableText, hunks: Sequence[Hunk], path: str) -> list[_Edit]:
    edits, here = list[_Edit](), 0
    for number, hunk in enumerate(hunks, 1):
        wanted = ExpectedLines(path, number, len(hunks))
        for header in hunk.headers:
            passed = sheet.seek([header], here)
            if passed is None:
                raise header_missing(sheet, wanted, header, here)
            here = passed.line + 1
        sides = _sides(hunk.lines)
        if not sides.old:
            at = here if hunk.headers and not hunk.is_at_end else sheet.count
            edits.append(_Edit(at, at, sides.new))
            continue
        found, sides = _found(sheet, sides, here, is_at_end=hunk.is_at_end)
        if found is None:
            raise lines_missing(sheet, wanted, sides.old, sides.new, here, is_at_end=hunk.is_at_end)
        edits += _changes(sheet, sides, found)
        here = found.line + len(sides.old)
    return _joined(sheet, sorted(edits, key=lambda edit: edit.start))


def _sides(lines: Sequence[str]) -> _Sides:
    old = [line[1:] for line in lines if line[0] != "+"]
    new = [line[1:] for line in lines if line[0] != "-"]
    kept, here, there = list[tuple[int, int]](), 0, 0
    for line in lines:
        mark = line[0]
        if mark == " ":
            kept.append((here, there))
        here += mark != "+"
        there += mark != "-"
    return _Sides(old, new, kept)


def _found(sheet: SeekableText, sides: _Sides, here: int, *, is_at_end: bool) -> tuple[Match | None, _Sides]:
    """Where a hunk stands. An empty line at its end may mean the end of the file's last line, which is no line."""
    found = sheet.seek(sides.old, here, is_at_end=is_at_end)
    if found is not None or sides.old[-1]:
        return found, sides
    old, new = sides.old[:-1], sides.new[:-1] if sides.new[-1:] == [""] else sides.new
    kept = [(there, here) for there, here in sides.kept if there < len(old) and here < len(new)]
    found = sheet.seek(old, here, is_at_end=is_at_end)
    return (None, sides) if found is None else (found, _Sides(old, new, kept))


def _changes(sheet: SeekableText, sides: _Sides, found: Match) -> Iterator[_Edit]:
    """What changes between the lines a hunk keeps, which stay as they are in the file."""
    new = sides.new
    if new and found.is_trimmed:
        there = sheet.cut(found.line, found.line + len(sides.old))
        new = reindent("\n".join(new), "\n".join(sides.old), "\n".join(there)).split("\n")
    old_at = new_at = 0
    for old_end, new_end in [*sides.kept, (len(sides.old), len(new))]:
        if (old_at, new_at) != (old_end, new_end):
            yield _Edit(found.line + old_at, found.line + old_end, new[new_at:new_end])
        old_at, new_at = old_end + 1, new_end + 1


def _joined(sheet: SeekableText, edits: list[_Edit]) -> list[_Edit]:
    """Edits that touch are one. What comes after a last line without an end gives it one, so it is part of that."""
    joined = list[_Edit]()
    for edit in edits:
        if joined and joined[-1].end == edit.start:
            joined[-1].end = edit.end
            joined[-1].new += edit.new
        else:
            joined.append(edit)
    if joined and sheet.text and not sheet.text.endswith("\n"):
        last = joined[-1]
        if last.start == sheet.count:
            last.start -= 1
            last.new = sheet.cut(last.start, last.end) + last.new
    return joined


def _spans(edits: list[_Edit], cut: Callable[[int, int], list[str]], line_end: str) -> list[Span]:
    return [Span(edit.start, cut(edit.start, edit.end), [line + line_end for line in edit.new]) for edit in edits]


def _rewritten(count: int, edits: list[_Edit], between: Callable[[int, int], str], line_end: str) -> str:
    """The text with its changes; `between` gives what stands from one line to another."""
    pieces, here = list[str](), 0
    for edit in edits:
        pieces.append(between(here, edit.start))
        pieces += [line + line_end for line in edit.new]
        here = edit.end
    return "".join([*pieces, between(here, count)])


@dataclass(slots=True)
class _File:
    """What is on the disk under a name, and what will be.

    `old` and `content` are None as long as nobody read the file. `origin` is the name under which the content is on the
    disk, if it is there; `fitted` tells how it was changed, if that happened once.
    """

    name: str
    before: Snapshot | None
    is_there: bool
    old: Content | None = None
    content: Content | None = None
    origin: str | None = None
    fitted: Fitted | None = None


class StagedFiles:
    """`load` gives the file at a path, or None when there is nothing. Names tell files apart, paths are shown."""

    def __init__(self, load: Callable[[str], Snapshot | None]) -> None:
        self._load = load
        self._files: dict[str, _File] = {}

    def add(self, name: str, path: str, text: str) -> None:
        file = self._file(name, path)
        file.is_there, file.content, file.origin, file.fitted = True, Content(text), None, None

    def delete(self, name: str, path: str) -> None:
        file = self._present(name, path)
        file.is_there, file.content, file.origin, file.fitted = False, None, None, None

    def update(self, name: str, path: str, hunks: Sequence[Hunk]) -> None:
        file = self._present(name, path)
        is_first = file.content is None
        content = self._content(file, path)
        fitted = fit(content.text, hunks, path)
        file.content, file.fitted = content.with_text(fitted.text), fitted if is_first else None

    def move(self, name: str, path: str, new_name: str, new_path: str) -> None:
        """Put a file at another place; what stands there gives way. At its own place it stays."""
        if name == new_name:
            return
        file, there = self._present(name, path), self._file(new_name, new_path)
        there.content, there.origin, there.fitted = self._content(file, path), file.origin, file.fitted
        there.is_there = True
        file.is_there, file.content, file.origin, file.fitted = False, None, None, None

    def drafts(self) -> list[Draft]:
        moved = {file.origin: file for file in self._files.values() if self._has_moved(file)}
        return [draft for file in self._files.values() for draft in self._drafts(file, is_moved=file.name in moved)]

    def _drafts(self, file: _File, *, is_moved: bool) -> Iterator[Draft]:
        fitted = file.fitted
        spans, lines = (fitted.spans, fitted.lines) if fitted else (None, None)
        if self._has_moved(file) and file.origin:
            origin = self._files[file.origin]
            yield Draft(
                path=file.name,
                before=origin.before,
                old=_disk_text(origin),
                new=file.content,
                spans=spans,
                lines=lines,
                moved_from=origin.name,
                replaced=file.before,
            )
        elif file.is_there and file.content:
            if file.origin != file.name:
                spans = lines = None
            yield Draft(
                path=file.name, before=file.before, old=_disk_text(file), new=file.content, spans=spans, lines=lines
            )
        elif file.before and not is_moved:
            yield Draft(path=file.name, before=file.before, old=_disk_text(file), new=None)

    def _has_moved(self, file: _File) -> bool:
        """Whether it holds what was on the disk elsewhere, where nothing is any more."""
        return file.is_there and file.origin not in (None, file.name) and not self._files[file.origin or ""].is_there

    def _file(self, name: str, path: str) -> _File:
        if name not in self._files:
            before = self._load(path)
            is_there = before is not None
            self._files[name] = _File(name, before, is_there=is_there, origin=name if is_there else None)
        return self._files[name]

    def _present(self, name: str, path: str) -> _File:
        is_known = name in self._files
        file = self._file(name, path)
        if not file.is_there:
            why = "was deleted or moved away earlier in this patch" if is_known else "does not exist"
            raise FileFailed(errno.ENOENT, path, f"{path} {why}; only a file that is there can be changed.")
        return file

    def _content(self, file: _File, path: str) -> Content:
        if file.content is None:
            assert file.before is not None, "what is there and was not read is on the disk"
            file.old = file.content = read(file.before.data, path)
        return file.content


def _disk_text(file: _File) -> Content | None:
    """What is on the disk, for the diff; None when it is nothing or no text."""
    try:
        return file.old or (read(file.before.data, file.name) if file.before else None)
    except CallError:
        return None
