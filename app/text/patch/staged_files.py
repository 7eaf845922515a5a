"""Stages: files as one operation after the other leaves them, before anything is written.

A later operation sees what the earlier ones did: a file that was added can be updated, one that was deleted can be
added again. What comes out are drafts of the difference to what is on the disk.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.core.errors import CallError, FileFailed
from app.core.ports import Snapshot
from app.text.edit.draft import Draft
from app.text.file_text import Content, read
from app.text.patch.hunks import Fitted, fit
from app.text.patch.parse import Hunk


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
                old=_text(origin),
                new=file.content,
                spans=spans,
                lines=lines,
                moved_from=origin.name,
                replaced=file.before,
            )
        elif file.is_there and file.content:
            if file.origin != file.name:
                spans = lines = None
            yield Draft(path=file.name, before=file.before, old=_text(file), new=file.content, spans=spans, lines=lines)
        elif file.before and not is_moved:
            yield Draft(path=file.name, before=file.before, old=_text(file), new=None)

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


def _text(file: _File) -> Content | None:
    """What is on the disk, for the diff; None when it is nothing or no text."""
    try:
        return file.old or (read(file.before.data, file.name) if file.before else None)
    except CallError:
        return None
