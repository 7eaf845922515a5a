"""Drafts: what an edit makes of files, before anything is written. A draft knows its change and its diff."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.errors import CallError
from app.core.ports import Change, Snapshot
from app.text.edit.diff import Diff, Lines, Span, compare, lines_of, unified
from app.text.file_text import Content, read

MOST_DIFF = 256 * 1024
MOST_COMPARED = 256 * 1024
"""Bytes of a file whose diff is shown."""
NOWHERE = "/dev/null"
MARK = "\ufeff"
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One file before and after. None before: it is made; None after: it is taken away.

    `path` is the one that is shown and written to. `moved_from` is where the file was until now, if it moves; what
    stood at its new place, if anything did, is `replaced`. `spans` tell what changed, if that is known; else it is
    found out. `lines` are those before, if somebody has them already. A `Content` that could not be read as text is
    None in `old`, and the diff is left out.
    """

    path: str
    before: Snapshot | None
    old: Content | None
    new: Content | None
    spans: Sequence[Span] | None = None
    lines: Sequence[str] | None = None
    moved_from: str | None = None
    replaced: Snapshot | None = None

    @property
    def kind(self) -> str:
        if self.new is None:
            return "deleted"
        if self.before is None:
            return "added"
        return "moved" if self.moved_from else "modified"

    @property
    def changes(self) -> list[Change]:
        """What is to be done to the files; nothing where nothing changed."""
        before = self.before.stamp if self.before else None
        data = None if self.new is None else self.new.data
        if self.moved_from is None:
            is_same = self.before is not None and data == self.before.data
            return [] if is_same else [Change(path=self.path, data=data, before=before)]
        there = self.replaced.stamp if self.replaced else None
        mode = self.before.mode if self.before else None
        return [
            Change(path=self.path, data=data, before=there, mode=mode),
            Change(path=self.moved_from, data=None, before=before),
        ]

    @property
    def needs_head(self) -> bool:
        """Whether hunks cannot tell all of it: a file moves, or an empty one comes or goes."""
        is_empty = not self.before.data if self.before else self.new is not None and not _shown(self.new)
        return self.moved_from is not None or (is_empty and self.kind != "modified")

    def diff(self, limit: int | None = None, has_head: bool | None = None) -> Diff:
        """The change as `git apply` and `patch` take it; what is over the limit is left out.

        Git's own first lines are there when they are needed, or asked for: what comes after them needs them too.
        """
        before, spans = self._spans()
        old_name = NOWHERE if self.before is None else _ended(self._old_name)
        new_name = NOWHERE if self.new is None else _ended(self._new_name)
        made = unified(before, spans, old_name, new_name, limit=limit)
        is_told = bool(spans) or self.needs_head
        head = self._head() if is_told and (self.needs_head if has_head is None else has_head) else ""
        return replace(made, text=head + made.text)

    @property
    def _old_name(self) -> str:
        return "a/" + (self.moved_from or self.path).lstrip("/")

    @property
    def _new_name(self) -> str:
        return "b/" + self.path.lstrip("/")

    def _spans(self) -> tuple[Sequence[str], Sequence[Span]]:
        """The lines before, and what became of them. A mark before the text is a part of the first line."""
        if self.before is not None and self.old is None:
            return [], []
        old, new = _shown(self.old), _shown(self.new)
        if self.spans is None or MARK in (old[:1], new[:1]):
            before = lines_of(old)
            return before, compare(before, lines_of(new))
        return self.lines or Lines(old), self.spans

    def _head(self) -> str:
        top = f"diff --git {_quoted(self._old_name)} {_quoted(self._new_name)}\n"
        match self.kind:
            case "added":
                return f"{top}new file mode 100644\n"
            case "deleted":
                is_run = self.before is not None and self.before.mode & 0o100
                return f"{top}deleted file mode 100{755 if is_run else 644}\n"
            case "moved":
                return f"{top}rename from {_quoted(self.moved_from or '')}\nrename to {_quoted(self.path)}\n"
        return top


def of_file(path: str, before: Snapshot) -> Content:
    """The text of a file that was loaded; what is no text is refused."""
    return read(before.data, path)


def changes_of(drafts: Iterable[Draft]) -> list[Change]:
    return [change for draft in drafts for change in draft.changes]


def facts(drafts: Iterable[Draft]) -> dict[str, Any]:
    """What a result tells frontends: the diff, how much it adds and takes, and the same for each file."""
    files, texts, left, is_cut = list[dict[str, Any]](), list[str](), MOST_DIFF, False
    told = list(drafts)
    has_head = any(draft.needs_head for draft in told)
    for draft in told:
        diff = draft.diff(left, has_head)
        files.append(_about(draft, diff))
        texts.append(diff.text)
        left, is_cut = max(0, left - len(diff.text)), is_cut or diff.is_cut
    about: dict[str, Any] = {
        "diff": "".join(texts),
        "additions": sum(file["additions"] for file in files),
        "deletions": sum(file["deletions"] for file in files),
        "files": files,
    }
    return about | {"diff_cut": True} if is_cut else about


def facts_of(path: str, before: Snapshot | None, after: bytes | None, kind: str) -> dict[str, Any]:
    """The facts that every mutating tool gives. None on a side that should be there: it was not looked at."""
    old, new = _text(before.data if before else None, path), _text(after, path)
    is_told = (before is None) == (kind == "added") and (after is None) == (kind == "deleted")
    if is_told and (old or before is None) and (new or after is None):
        return facts([Draft(path=path, before=before, old=old, new=new)])
    file = {"path": path, "kind": kind, "additions": 0, "deletions": 0}
    return {"diff": "", "additions": 0, "deletions": 0, "files": [file]}


def _text(data: bytes | None, path: str) -> Content | None:
    try:
        return None if data is None else read(data, path)
    except CallError:
        return None


def _about(draft: Draft, diff: Diff) -> dict[str, Any]:
    about = {"path": draft.path, "kind": draft.kind, "additions": diff.additions, "deletions": diff.deletions}
    return about | {"moved_from": draft.moved_from} if draft.moved_from else about


def _shown(content: Content | None) -> str:
    if content is None:
        return ""
    return MARK + content.text if content.has_mark else content.text


def _quoted(name: str) -> str:
    """A name as diffs have it: what could be misread is escaped."""
    return f'"{_UNSAFE.sub(_escaped, name)}"' if _UNSAFE.search(name) else name


def _ended(name: str) -> str:
    """A name in the first lines of a diff, where a tab ends what has spaces."""
    quoted = _quoted(name)
    return f"{quoted}\t" if quoted == name and " " in name else quoted


def _escaped(found: re.Match[str]) -> str:
    char = found.group()
    return f"\\{char}" if char in '"\\' else f"\\{ord(char):03o}"
