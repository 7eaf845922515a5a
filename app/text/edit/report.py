"""What a model reads about the edits it sent: which were applied, which were not and why, and what to send again."""

from collections.abc import Iterator, Mapping, Sequence

from app.text.edit.draft import Draft
from app.text.edit.nearest_lines import nearest
from app.text.edit.search_replace import Block
from app.text.edit.session import EditedFile, Outcome, Rejected
from app.text.edit.udiff import Hunk

CONTEXT_LINES = 5
MAX_REPORTED = 20
MAX_QUOTED_LINES = 60
MARKS = {"added": "A", "modified": "M", "deleted": "D"}
NOUNS = {"search_replace": "SEARCH/REPLACE block", "udiff": "hunk", "whole": "file"}


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe_success(outcomes: Sequence[Outcome], drafts: Sequence[Draft], noun: str, is_dry: bool) -> str:
    done = f"{count(len(outcomes), noun)} {'would be applied' if is_dry else 'applied'}"
    head = f"Dry run, nothing was written: {done}." if is_dry else f"{done}."
    files = [f"{MARKS[draft.kind]} {draft.path}" for draft in drafts] or ["No file changes: all is as it should be."]
    return "\n".join([head, *files, *_notes(outcomes, noun)])


def describe_failure(
    outcomes: Sequence[Outcome], files: Mapping[str, EditedFile], noun: str, *, is_dry: bool, is_atomic: bool
) -> str:
    """Everything that helps to send better edits. The files are as the applied edits have left them."""
    failed = [outcome for outcome in outcomes if isinstance(outcome.end, Rejected)]
    parts = [f"# {len(failed)} of {count(len(outcomes), noun)} failed to match"]
    parts += ["\n".join(_describe_rejected(outcome, files, noun)) for outcome in failed[:MAX_REPORTED]]
    if len(failed) > MAX_REPORTED:
        rest = ", ".join(str(outcome.number) for outcome in failed[MAX_REPORTED:])
        parts.append(f"Not shown: {noun}s {rest}.")
    if notes := _notes(outcomes, noun):
        parts.append("\n".join(notes))
    parts.append(_next_steps(len(failed), len(outcomes) - len(failed), noun, is_dry=is_dry, is_atomic=is_atomic))
    return "\n\n".join(parts)


def error_sentence(outcomes: Sequence[Outcome], noun: str, *, is_dry: bool, is_atomic: bool) -> str:
    """The same in short, for the error."""
    failed = [outcome for outcome in outcomes if isinstance(outcome.end, Rejected)]
    names = ", ".join(f"{outcome.number} ({outcome.end.name})" for outcome in failed[:MAX_REPORTED])
    steps = _next_steps(len(failed), len(outcomes) - len(failed), noun, is_dry=is_dry, is_atomic=is_atomic)
    return f"{len(failed)} of {count(len(outcomes), noun)} failed to match: {names}. {steps}"


def _next_steps(failed: int, applied: int, noun: str, *, is_dry: bool, is_atomic: bool) -> str:
    fixed = f"a corrected version of the {noun}" if failed == 1 else f"corrected versions of the {noun}s"
    if is_dry:
        return f"This was a dry run and nothing was written; {count(applied, noun)} would be applied."
    if is_atomic or not applied:
        return f"Nothing was written. Send {fixed} that failed" + (" together with the others." if applied else ".")
    which = f"The other {noun} was" if applied == 1 else f"The other {count(applied, noun)} were"
    return f"{which} applied: don't re-send {'it' if applied == 1 else 'them'}, only send {fixed} that failed."


def _describe_rejected(outcome: Outcome, files: Mapping[str, EditedFile], noun: str) -> Iterator[str]:
    """Why an edit failed, its own text, and what the file has instead."""
    edit, end = outcome.edit, outcome.end
    assert isinstance(end, Rejected), "only rejected edits are described"
    tried = " (the other files named here were tried too)" if isinstance(edit, Block) and len(files) > 1 else ""
    yield f"## {noun} {outcome.number} (line {edit.line} of the content): {_reason(end, tried)}"
    yield from _quote(str(edit).split("\n"))
    if not isinstance(edit, Block | Hunk) or not files[end.name].exists:
        return
    buffer = files[end.name].buffer
    old, new = (edit.search, edit.replace) if isinstance(edit, Block) else (edit.old, edit.new)
    if end.reason != "not_unique" and (near := nearest(buffer.lines, old)):
        first, last = max(0, near.start - CONTEXT_LINES), min(len(buffer.lines), near.stop + CONTEXT_LINES)
        yield f"\nDid you mean these actual lines {first + 1}-{last} of {end.name}?"
        yield from _quote(buffer.lines[first:last])
    if any(line.strip() for line in new) and next(buffer.find(new), None) is not None:
        yield f"\nThe new lines are already in {end.name}: is this {noun} still needed?"


def _reason(end: Rejected, tried: str) -> str:
    match end.reason:
        case "no_match":
            return (
                f"{end.name} has no such lines in a row{tried}. They must be the file's own, with every blank"
                " line, comment and indentation."
            )
        case "no_file":
            return f"{end.name} does not exist{tried}. To create it, leave out the lines to find."
        case "not_unique":
            where = " and ".join(str(line) for line in end.lines)
            at = f", at lines {where}" if where else ""
            return (
                f"{end.name} has more than one place that matches{at}. Add lines of context until there is only one, or"
                " set replace_all to change them all."
            )
        case "file_exists":
            return f"{end.name} exists already, and the diff says that it is new (`--- /dev/null`)."
        case "not_whole":
            return f"{end.name} is to be removed (`+++ /dev/null`), but these are not all its lines."


def _notes(outcomes: Sequence[Outcome], noun: str) -> list[str]:
    """What a model should know about the edits that were applied."""
    notes = list[str]()
    for outcome in outcomes:
        applied = outcome.end
        if isinstance(applied, Rejected):
            continue
        if isinstance(outcome.edit, Block) and applied.places > 1:
            text = f"matches {applied.places} places in {applied.name}; the first of them was used."
            notes.append(f"Note: {noun} {outcome.number} {text}")
        if applied.meant:
            text = f"does not match {applied.meant}; it is applied to {applied.name}, the only other file it matches."
            notes.append(f"Note: {noun} {outcome.number} {text}")
    return notes


def _quote(lines: Sequence[str]) -> Iterator[str]:
    """Lines in a fence that is longer than any in them; of very many, the first."""
    longest = max((len(line) - len(line.lstrip("`")) for line in map(str.lstrip, lines)), default=0)
    ticks = "`" * max(3, longest + 1)
    yield ticks
    yield from lines[:MAX_QUOTED_LINES]
    if len(lines) > MAX_QUOTED_LINES:
        yield f"[{len(lines) - MAX_QUOTED_LINES} more lines]"
    yield ticks
