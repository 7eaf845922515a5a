"""Drafts: what an edit makes of files, before anything is written. A draft knows its change and its diff."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.files import Change, Snapshot
from app.texts.contents import Content, read
from app.texts.diffs import Diff, Span, compare, lines_of, unified

MOST_DIFF = 256 * 1024
NOWHERE = "/dev/null"


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

    def diff(self) -> Diff:
        if self.before is not None and self.old is None:
            return Diff("", 0, 0)
        before = self.lines
        if before is None:
            before = lines_of(self.old.text) if self.old else []
        spans = self.spans
        if spans is None:
            spans = compare(before, lines_of(self.new.text) if self.new else [])
        old_name = NOWHERE if self.before is None else f"a/{self.moved_from or self.path}"
        return unified(before, spans, old_name, NOWHERE if self.new is None else f"b/{self.path}")


def of_file(path: str, before: Snapshot) -> Content:
    """The text of a file that was loaded; what is no text is refused."""
    return read(before.data, path)


def changes_of(drafts: Iterable[Draft]) -> list[Change]:
    return [change for draft in drafts for change in draft.changes]


def facts(drafts: Iterable[Draft]) -> dict[str, Any]:
    """What a result tells frontends: the diff, how much it adds and takes, and the same for each file."""
    told = [(draft, draft.diff()) for draft in drafts]
    text = "".join(diff.text for _, diff in told)
    about: dict[str, Any] = {
        "diff": text[:MOST_DIFF],
        "additions": sum(diff.additions for _, diff in told),
        "deletions": sum(diff.deletions for _, diff in told),
        "files": [
            {"path": draft.path, "kind": draft.kind, "additions": diff.additions, "deletions": diff.deletions}
            | ({"moved_from": draft.moved_from} if draft.moved_from else {})
            for draft, diff in told
        ],
    }
    return about | {"diff_cut": True} if len(text) > MOST_DIFF else about
