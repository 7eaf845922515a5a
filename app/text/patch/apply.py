"""Applies the operations of a patch to files in memory.

A later operation sees what the earlier ones did: an added file can be updated, a deleted one added again. Hunks are in
the order of the file. Unchanged lines keep their text and line ends; new ones end like the first line of the file. A
hunk that only matches at another indentation is reindented.
"""

import errno
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.core.errors import FileFailed, PatchMismatch
from app.core.ports import Snapshot
from app.text.edit.diff import LazyLines, Span, lines_of
from app.text.edit.draft import Draft, decode_if_text
from app.text.edit.nearest_lines import cut_lines, excerpt, nearest_in, numbered_excerpt
from app.text.edit.reindent import reindent
from app.text.file_text import Content, decode
from app.text.patch.parse import Hunk
from app.text.patch.seek import Match, SeekableText


@dataclass(slots=True)
class _File:
    """A file on the disk, and as the operations have left it."""

    name: str
    before: Snapshot | None
    exists: bool
    #: The decoded `before`; None until it is needed.
    old: Content | None = None
    #: The current text; None until it is needed, or if the file does not exist.
    content: Content | None = None
    #: The name under which this content is on the disk, if it is.
    origin: str | None = None
    #: How `old` was changed, if by one update only.
    patched: "PatchedText | None" = None

    def set(self, content: Content | None, *, origin: str | None = None) -> None:
        self.exists, self.content, self.origin, self.patched = content is not None, content, origin, None

    def disk_text(self) -> Content | None:
        """The text on the disk, for the diff; None if there is none."""
        return self.old or decode_if_text(self.before.data if self.before else None, self.name)


class StagedFiles:
    """Files by their canonical names. `load` reads the file at a path; None if it does not exist."""

    def __init__(self, load: Callable[[str], Snapshot | None]) -> None:
        self._load = load
        self._files: dict[str, _File] = {}

    def add(self, name: str, path: str, text: str) -> None:
        self._file(name, path).set(Content(text))

    def delete(self, name: str, path: str) -> None:
        self._existing(name, path).set(None)

    def update(self, name: str, path: str, hunks: Sequence[Hunk]) -> None:
        file = self._existing(name, path)
        is_first = file.content is None
        content = self._content(file, path)
        patched = apply_hunks(content.text, hunks, path)
        file.content, file.patched = content.with_text(patched.text), patched if is_first else None

    def move(self, name: str, path: str, new_name: str, new_path: str) -> None:
        """Move a file, replacing what is at the new path."""
        if name == new_name:
            return
        file, target = self._existing(name, path), self._file(new_name, new_path)
        target.content, target.origin, target.patched = self._content(file, path), file.origin, file.patched
        target.exists = True
        file.set(None)

    def drafts(self) -> list[Draft]:
        moved = {file.origin: file for file in self._files.values() if self._has_moved(file)}
        return [draft for file in self._files.values() for draft in self._drafts(file, is_moved=file.name in moved)]

    def _drafts(self, file: _File, *, is_moved: bool) -> Iterator[Draft]:
        patched = file.patched
        spans, lines = (patched.spans, patched.lines) if patched else (None, None)
        if self._has_moved(file) and file.origin:
            origin = self._files[file.origin]
            yield Draft(
                path=file.name,
                before=origin.before,
                old=origin.disk_text(),
                new=file.content,
                spans=spans,
                lines=lines,
                moved_from=origin.name,
                replaced=file.before,
            )
        elif file.exists and file.content:
            if file.origin != file.name:
                spans = lines = None
            yield Draft(
                path=file.name, before=file.before, old=file.disk_text(), new=file.content, spans=spans, lines=lines
            )
        elif file.before and not is_moved:
            yield Draft(path=file.name, before=file.before, old=file.disk_text(), new=None)

    def _has_moved(self, file: _File) -> bool:
        """Whether it has the content of another file on the disk, which does not exist any more."""
        return file.exists and file.origin not in (None, file.name) and not self._files[file.origin or ""].exists

    def _file(self, name: str, path: str) -> _File:
        if name not in self._files:
            before = self._load(path)
            exists = before is not None
            self._files[name] = _File(name, before, exists=exists, origin=name if exists else None)
        return self._files[name]

    def _existing(self, name: str, path: str) -> _File:
        is_known = name in self._files
        file = self._file(name, path)
        if not file.exists:
            why = "was deleted or moved away earlier in this patch" if is_known else "does not exist"
            raise FileFailed(errno.ENOENT, path, f"{path} {why}; only an existing file can be changed.")
        return file

    def _content(self, file: _File, path: str) -> Content:
        if file.content is None:
            assert file.before is not None, "a file that exists and was not decoded is on the disk"
            file.old = file.content = decode(file.before.data, path)
        return file.content


@dataclass(frozen=True, slots=True)
class PatchedText:
    """The text after all hunks, with the changed spans and the old lines for a diff, where they are known."""

    text: str
    spans: list[Span] | None
    lines: LazyLines | None = None


@dataclass(slots=True)
class _Edit:
    """Replaces the lines from `start` up to `end`. New lines have no line ends."""

    start: int
    end: int
    new: list[str]


@dataclass(frozen=True, slots=True)
class _Sides:
    """The old and new lines of a hunk; `context` are the indices of lines on both sides."""

    old: list[str]
    new: list[str]
    context: list[tuple[int, int]]


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> PatchedText:
    """Apply hunks to the text of a file. Raises `PatchMismatch` when one of them does not match."""
    has_cr = "\r" in text
    seekable = SeekableText(text.replace("\r\n", "\n") if has_cr else text)
    # Each CRLF made it shorter by one; if that is less than the number of line ends, some are of another kind.
    if has_cr and ("\r" in seekable.text or len(text) - len(seekable.text) < seekable.ends):
        return _apply_to_mixed(text, hunks, path)
    edits = _edits(seekable, hunks, path)
    after = _rewrite(seekable.count, edits, seekable.piece, "\n")
    if not has_cr:
        spans = _spans(edits, lambda start, end: lines_of(seekable.piece(start, end)), "\n")
        return PatchedText(after, spans, LazyLines(text, seekable.count, seekable.exact.offset))
    spans = _spans(edits, lambda start, end: lines_of(seekable.piece(start, end).replace("\n", "\r\n")), "\r\n")
    return PatchedText(after.replace("\n", "\r\n"), spans)


def _apply_to_mixed(text: str, hunks: Sequence[Hunk], path: str) -> PatchedText:
    """The same with mixed line ends: each line keeps its own."""
    lines = list(io.StringIO(text, newline=""))
    bare = [line.rstrip("\r\n") for line in lines]
    seekable = SeekableText("\n".join(bare) + ("\n" if lines[-1] != bare[-1] else ""))
    edits, line_end = _edits(seekable, hunks, path), lines[0][len(bare[0]) :]
    after = _rewrite(seekable.count, edits, lambda start, end: "".join(lines[start:end]), line_end)
    # In a diff a lone CR does not end a line, so its line numbers would differ.
    is_comparable = text.count("\r") == text.count("\r\n")
    return PatchedText(after, _spans(edits, lambda start, end: lines[start:end], line_end) if is_comparable else None)


def _edits(seekable: SeekableText, hunks: Sequence[Hunk], path: str) -> list[_Edit]:
    edits, here = list[_Edit](), 0
    for number, hunk in enumerate(hunks, 1):
        for header in hunk.headers:
            passed = seekable.seek([header], here)
            if passed is None:
                raise _Mismatch(seekable, path, number, len(hunks), here).of_header(header)
            here = passed.line + 1
        sides = _sides(hunk.lines)
        if not sides.old:
            at = here if hunk.headers and not hunk.is_at_end else seekable.count
            edits.append(_Edit(at, at, sides.new))
            continue
        found, sides = _find(seekable, sides, here, is_at_end=hunk.is_at_end)
        if found is None:
            raise _Mismatch(seekable, path, number, len(hunks), here).of_lines(sides, is_at_end=hunk.is_at_end)
        edits += _changes(seekable, sides, found)
        here = found.line + len(sides.old)
    return _merge(seekable, sorted(edits, key=lambda edit: edit.start))


def _sides(lines: Sequence[str]) -> _Sides:
    old = [line[1:] for line in lines if line[0] != "+"]
    new = [line[1:] for line in lines if line[0] != "-"]
    context, here, there = list[tuple[int, int]](), 0, 0
    for line in lines:
        mark = line[0]
        if mark == " ":
            context.append((here, there))
        here += mark != "+"
        there += mark != "-"
    return _Sides(old, new, context)


def _find(seekable: SeekableText, sides: _Sides, here: int, *, is_at_end: bool) -> tuple[Match | None, _Sides]:
    """Where a hunk matches. An empty line at its end may mean the line end of the file's last line."""
    found = seekable.seek(sides.old, here, is_at_end=is_at_end)
    if found is not None or sides.old[-1]:
        return found, sides
    old, new = sides.old[:-1], sides.new[:-1] if sides.new[-1:] == [""] else sides.new
    context = [(there, here) for there, here in sides.context if there < len(old) and here < len(new)]
    found = seekable.seek(old, here, is_at_end=is_at_end)
    return (None, sides) if found is None else (found, _Sides(old, new, context))


def _changes(seekable: SeekableText, sides: _Sides, found: Match) -> Iterator[_Edit]:
    """The changes between the context lines of a hunk, which stay as they are in the file."""
    new = sides.new
    if new and found.is_stripped:
        there = seekable.lines(found.line, found.line + len(sides.old))
        new = reindent("\n".join(new), "\n".join(sides.old), "\n".join(there)).split("\n")
    old_at = new_at = 0
    for old_end, new_end in [*sides.context, (len(sides.old), len(new))]:
        if (old_at, new_at) != (old_end, new_end):
            yield _Edit(found.line + old_at, found.line + old_end, new[new_at:new_end])
        old_at, new_at = old_end + 1, new_end + 1


def _merge(seekable: SeekableText, edits: list[_Edit]) -> list[_Edit]:
    """Adjacent edits as one. Lines appended to a last line without a line end change that line too."""
    joined = list[_Edit]()
    for edit in edits:
        if joined and joined[-1].end == edit.start:
            joined[-1].end = edit.end
            joined[-1].new += edit.new
        else:
            joined.append(edit)
    if joined and seekable.text and not seekable.text.endswith("\n"):
        last = joined[-1]
        if last.start == seekable.count:
            last.start -= 1
            last.new = seekable.lines(last.start, last.end) + last.new
    return joined


def _spans(edits: list[_Edit], cut: Callable[[int, int], list[str]], line_end: str) -> list[Span]:
    return [Span(edit.start, cut(edit.start, edit.end), [line + line_end for line in edit.new]) for edit in edits]


def _rewrite(count: int, edits: list[_Edit], between: Callable[[int, int], str], line_end: str) -> str:
    """The new text; `between` gives the old text from one line to another."""
    pieces, here = list[str](), 0
    for edit in edits:
        pieces.append(between(here, edit.start))
        pieces += [line + line_end for line in edit.new]
        here = edit.end
    return "".join([*pieces, between(here, count)])


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """A hunk that does not match, by its number, and the line up to which the file is used by earlier hunks."""

    seekable: SeekableText
    path: str
    number: int
    total: int
    here: int

    def of_header(self, header: str) -> PatchMismatch:
        what = f"the line of its `@@` header was not found{self._after()}"
        return self._error(what, [header], self._found_elsewhere([header]))

    def of_lines(self, sides: _Sides, *, is_at_end: bool) -> PatchMismatch:
        what = f"these lines are not {'at the end of the file' if is_at_end else f'there{self._after()}'}"
        why = self._already_applied(sides) or self._found_elsewhere(sides.old, is_at_end=is_at_end)
        return self._error(what, sides.old, why)

    def _error(self, what: str, wanted: Sequence[str], why: str | None) -> PatchMismatch:
        lines = LazyLines(self.seekable.text)
        near = nearest_in(self.seekable.text, lines, wanted)
        nearest = excerpt(lines, near) if near else None
        if why is None and nearest is None:
            why = "Nothing in the file is similar; read the file again and take the lines from it."
        elif why is None and nearest is not None:
            why = f"The nearest lines of the file are these:\n{numbered_excerpt(**nearest)}"
        text = cut_lines(wanted)
        return PatchMismatch(
            f"{self.path}: hunk {self.number} of {self.total} does not match; {what}:\n{text}\n{why}",
            details={"path": self.path, "hunk": self.number, "looked_for": text, "nearest": nearest},
        )

    def _already_applied(self, sides: _Sides) -> str | None:
        if not any(map(str.strip, set(sides.new) - set(sides.old))):
            return None
        found = self.seekable.seek(sides.new, 0)
        if found is None:
            return None
        return f"The new lines are there already, at line {found.line + 1}; it seems to be applied."

    def _found_elsewhere(self, wanted: Sequence[str], *, is_at_end: bool = False) -> str | None:
        found = self.seekable.seek(wanted, 0) if self.here or is_at_end else None
        if found is None:
            return None
        if found.line >= self.here:
            return f"That is at line {found.line + 1}, but other lines follow; leave `*** End of File` out."
        return (
            f"That is at line {found.line + 1}, but the hunk or header before it reaches to line {self.here}; hunks"
            " come in the order of the file, and the line of a header is not repeated in its hunk."
        )

    def _after(self) -> str:
        return f" after line {self.here}" if self.here else ""
