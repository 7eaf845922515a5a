"""Misfits: what to say when a hunk has no place in its file, so that the next try has one."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.errors import PatchMismatch
from app.text.edit.nearest_lines import nearest_in
from app.text.lazy_lines import Lines
from app.text.patch.seek import SeekableText

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
