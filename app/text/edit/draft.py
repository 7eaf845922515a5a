"""Changes to files before they are written, with their diffs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.errors import CallError
from app.core.ports import Change, Snapshot
from app.text.edit.diff import Diff, LazyLines, Span, compare, lines_of, unified
from app.text.file_text import Content, decode

MAX_DIFF_LENGTH = 256 * 1024
MAX_COMPARED_BYTES = 256 * 1024
"""Larger whole files are written without a diff."""
NOWHERE = "/dev/null"
BOM = "\ufeff"
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One file before and after a change."""

    path: str
    #: None: the file is created.
    before: Snapshot | None
    #: The decoded text of `before`; None if it is not text, and then there is no diff.
    old: Content | None
    #: None: the file is deleted.
    new: Content | None
    #: The changed lines, if known; otherwise both texts are compared.
    spans: Sequence[Span] | None = None
    #: The lines of `old`, if already split.
    lines: Sequence[str] | None = None
    moved_from: str | None = None
    #: What a moved file replaces at its new path.
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
        """What the workspace has to commit; empty if nothing changed."""
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
        """Whether the diff needs git's header: the file is moved, or an empty file is created or deleted."""
        is_empty = not self.before.data if self.before else self.new is not None and not _text_with_bom(self.new)
        return self.moved_from is not None or (is_empty and self.kind != "modified")

    def diff(self, limit: int | None = None, has_head: bool | None = None) -> Diff:
        """The change as `git apply` and `patch` accept it, cut at `limit` characters.

        Git's header is included if needed, or by `has_head`: in a diff of several files all need it if one does.
        """
        before, spans = self._spans()
        old_name = NOWHERE if self.before is None else _header_name(self._old_name)
        new_name = NOWHERE if self.new is None else _header_name(self._new_name)
        diff = unified(before, spans, old_name, new_name, limit=limit)
        is_changed = bool(spans) or self.needs_head
        head = self._head() if is_changed and (self.needs_head if has_head is None else has_head) else ""
        return replace(diff, text=head + diff.text)

    @property
    def _old_name(self) -> str:
        return "a/" + (self.moved_from or self.path).lstrip("/")

    @property
    def _new_name(self) -> str:
        return "b/" + self.path.lstrip("/")

    def _spans(self) -> tuple[Sequence[str], Sequence[Span]]:
        """The old lines and the changed spans. A byte order mark is a part of the first line."""
        if self.before is not None and self.old is None:
            return [], []
        old, new = _text_with_bom(self.old), _text_with_bom(self.new)
        if self.spans is None or BOM in (old[:1], new[:1]):
            before = lines_of(old)
            return before, compare(before, lines_of(new))
        return self.lines or LazyLines(old), self.spans

    def _head(self) -> str:
        top = f"diff --git {_quote_name(self._old_name)} {_quote_name(self._new_name)}\n"
        match self.kind:
            case "added":
                return f"{top}new file mode 100644\n"
            case "deleted":
                is_executable = self.before is not None and self.before.mode & 0o100
                return f"{top}deleted file mode 100{755 if is_executable else 644}\n"
            case "moved":
                return f"{top}rename from {_quote_name(self.moved_from or '')}\nrename to {_quote_name(self.path)}\n"
        return top


def changes_of(drafts: Iterable[Draft]) -> list[Change]:
    return [change for draft in drafts for change in draft.changes]


def diff_facts(drafts: Iterable[Draft]) -> dict[str, Any]:
    """The metadata of a result: the diff, its added and deleted lines, and the same for each file."""
    files, texts, left, is_cut = list[dict[str, Any]](), list[str](), MAX_DIFF_LENGTH, False
    drafts = list(drafts)
    has_head = any(draft.needs_head for draft in drafts)
    for draft in drafts:
        diff = draft.diff(left, has_head)
        file = {"path": draft.path, "kind": draft.kind, "additions": diff.additions, "deletions": diff.deletions}
        files.append(file | {"moved_from": draft.moved_from} if draft.moved_from else file)
        texts.append(diff.text)
        left, is_cut = max(0, left - len(diff.text)), is_cut or diff.is_cut
    facts: dict[str, Any] = {
        "diff": "".join(texts),
        "additions": sum(file["additions"] for file in files),
        "deletions": sum(file["deletions"] for file in files),
        "files": files,
    }
    return facts | {"diff_cut": True} if is_cut else facts


def whole_file_facts(path: str, before: Snapshot | None, after: bytes | None, kind: str) -> dict[str, Any]:
    """The same for a whole file, with a diff if both sides are text. A missing side that exists was too large."""
    old, new = decode_if_text(before.data if before else None, path), decode_if_text(after, path)
    is_known = (before is None) == (kind == "added") and (after is None) == (kind == "deleted")
    if is_known and (old or before is None) and (new or after is None):
        return diff_facts([Draft(path=path, before=before, old=old, new=new)])
    file = {"path": path, "kind": kind, "additions": 0, "deletions": 0}
    return {"diff": "", "additions": 0, "deletions": 0, "files": [file]}


def decode_if_text(data: bytes | None, path: str) -> Content | None:
    try:
        return None if data is None else decode(data, path)
    except CallError:
        return None


def _text_with_bom(content: Content | None) -> str:
    if content is None:
        return ""
    return BOM + content.text if content.has_bom else content.text


def _quote_name(name: str) -> str:
    """A name as git writes it: quoted if it has special characters."""
    return f'"{_UNSAFE.sub(_escape, name)}"' if _UNSAFE.search(name) else name


def _header_name(name: str) -> str:
    """A name after `---` or `+++`, where a tab ends a name with spaces."""
    quoted = _quote_name(name)
    return f"{quoted}\t" if quoted == name and " " in name else quoted


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    return f"\\{char}" if char in '"\\' else f"\\{ord(char):03o}"
