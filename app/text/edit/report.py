"""Edit reports: what a model reads of the edits it sent: which were made, which not and why, and what to send again."""

from collections.abc import Iterator, Mapping, Sequence

from app.text.edit.draft import Draft
from app.text.edit.nearest_lines import nearest
from app.text.edit.search_replace import Block
from app.text.edit.session import EditedFile, Outcome, Rejected
from app.text.edit.udiff import Hunk

AROUND = 5
MOST_TOLD = 20
MOST_QUOTED = 60
LETTERS = {"added": "A", "modified": "M", "deleted": "D"}
NOUNS = {"search_replace": "SEARCH/REPLACE block", "udiff": "hunk", "whole": "file"}


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def success(outcomes: Sequence[Outcome], drafts: Sequence[Draft], noun: str, is_dry: bool) -> str:
    said = f"{counted(len(outcomes), noun)} {'would be applied' if is_dry else 'applied'}"
    head = f"Dry run, nothing was written: {said}." if is_dry else f"{said}."
    files = [f"{LETTERS[draft.kind]} {draft.path}" for draft in drafts] or ["No file changes: all is as it should be."]
    return "\n".join([head, *files, *_notes(outcomes, noun)])


def failure(
    outcomes: Sequence[Outcome], sheets: Mapping[str, EditedFile], noun: str, *, is_dry: bool, is_atomic: bool
) -> str:
    """All that helps to send better edits. Sheets are as they are after those that were made."""
    missed = [outcome for outcome in outcomes if isinstance(outcome.end, Rejected)]
    parts = [f"# {len(missed)} of {counted(len(outcomes), noun)} failed to match"]
    parts += ["\n".join(_told(outcome, sheets, noun)) for outcome in missed[:MOST_TOLD]]
    if len(missed) > MOST_TOLD:
        rest = ", ".join(str(outcome.number) for outcome in missed[MOST_TOLD:])
        parts.append(f"Not shown: {noun}s {rest}.")
    if notes := _notes(outcomes, noun):
        parts.append("\n".join(notes))
    parts.append(_next_steps(len(missed), len(outcomes) - len(missed), noun, is_dry=is_dry, is_atomic=is_atomic))
    return "\n\n".join(parts)


def sentence(outcomes: Sequence[Outcome], noun: str, *, is_dry: bool, is_atomic: bool) -> str:
    """The same in one sentence, as the error says it."""
    missed = [outcome for outcome in outcomes if isinstance(outcome.end, Rejected)]
    named = ", ".join(f"{outcome.number} ({outcome.end.name})" for outcome in missed[:MOST_TOLD])
    made = len(outcomes) - len(missed)
    said = f"{len(missed)} of {counted(len(outcomes), noun)} failed to match: {named}"
    return f"{said}. {_next_steps(len(missed), made, noun, is_dry=is_dry, is_atomic=is_atomic)}"


def _next_steps(missed: int, made: int, noun: str, *, is_dry: bool, is_atomic: bool) -> str:
    fixed = f"a corrected version of the {noun}" if missed == 1 else f"corrected versions of the {noun}s"
    if is_dry:
        return f"This was a dry run and nothing was written; {counted(made, noun)} would be applied."
    if is_atomic or not made:
        return f"Nothing was written. Send {fixed} that failed" + (" together with the others." if made else ".")
    which = f"The other {noun} was" if made == 1 else f"The other {counted(made, noun)} were"
    return f"{which} applied: don't re-send {'it' if made == 1 else 'them'}, only send {fixed} that failed."


def _told(outcome: Outcome, sheets: Mapping[str, EditedFile], noun: str) -> Iterator[str]:
    """One that failed: why, its own text, and what the file has instead."""
    edit, end = outcome.edit, outcome.end
    assert isinstance(end, Rejected), "only what failed is told"
    tried = " (the other files named here were tried too)" if isinstance(edit, Block) and len(sheets) > 1 else ""
    yield f"## {noun} {outcome.number} (line {edit.line} of the content): {_why(end, tried)}"
    yield from _quoted(str(edit).split("\n"))
    if not isinstance(edit, Block | Hunk) or not sheets[end.name].exists:
        return
    lines = sheets[end.name].script.lines
    wanted, instead = (edit.search, edit.replace) if isinstance(edit, Block) else (edit.old, edit.new)
    if end.reason != "not_unique" and (near := nearest(lines, wanted)):
        first, last = max(0, near.start - AROUND), min(len(lines), near.stop + AROUND)
        yield f"\nDid you mean these actual lines {first + 1}-{last} of {end.name}?"
        yield from _quoted(lines[first:last])
    if any(line.strip() for line in instead) and next(sheets[end.name].script.places(instead), None) is not None:
        yield f"\nThe new lines are already in {end.name}: is this {noun} still needed?"


def _why(end: Rejected, tried: str) -> str:
    match end.reason:
        case "no_match":
            return (
                f"{end.name} has no such lines in a row{tried}. They must be the file's own, with every blank"
                " line, comment and indentation."
            )
        case "no_file":
            return f"{end.name} does not exist{tried}. To make it, leave out what is looked for."
        case "not_unique":
            where = " and ".join(str(line) for line in end.lines)
            at = f", at lines {where}" if where else ""
            return (
                f"{end.name} has more than one place that fits{at}. Add lines of context until there is only one, or"
                " set replace_all to change them all."
            )
        case "file_exists":
            return f"{end.name} is there already, and the diff says that it is new (`--- /dev/null`)."
        case "not_whole":
            return f"{end.name} is to be removed (`+++ /dev/null`), but these are not all its lines."


def _notes(outcomes: Sequence[Outcome], noun: str) -> list[str]:
    """What a model should know of those that were made."""
    return [f"Note: {noun} {outcome.number} {note}" for outcome in outcomes for note in _noted(outcome)]


def _noted(outcome: Outcome) -> Iterator[str]:
    made = outcome.end
    if isinstance(made, Rejected):
        return
    if isinstance(outcome.edit, Block) and made.places > 1:
        yield f"fits {made.places} places in {made.name}; the first of them counts."
    if made.meant:
        yield f"does not fit {made.meant}; it is made in {made.name}, the only other file named here that it fits."


def _quoted(lines: Sequence[str]) -> Iterator[str]:
    """Lines in a fence that they do not have in themselves; of very many, the first."""
    longest = max((len(line) - len(line.lstrip("`")) for line in map(str.lstrip, lines)), default=0)
    ticks = "`" * max(3, longest + 1)
    yield ticks
    yield from lines[:MOST_QUOTED]
    if len(lines) > MOST_QUOTED:
        yield f"[{len(lines) - MOST_QUOTED} more lines]"
    yield ticks
