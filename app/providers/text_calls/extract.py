"""Calls read out of plain text: one walk from left to right, past what is thought or quoted.

A call is found where it stands by itself. What stands inside of another one is its argument, whatever it looks like.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.runs import Known, ModelCall
from app.providers.text_calls.formats import CONVENTIONS
from app.providers.text_calls.scanner import FENCE, FoundCall, ScannedText, Span, without

THOUGHT_END = "</think>"
_OPENING = "|".join(convention.opening for convention in CONVENTIONS)
_OPENINGS = re.compile(f"(?P<opening>{_OPENING})")
_MARKS = re.compile(
    rf"(?P<thought><think>)|(?P<thought_end>{THOUGHT_END})|(?P<fence>{FENCE})|(?P<ticks>`++)|(?P<opening>{_OPENING})",
    re.MULTILINE,
)
_READERS = [(re.compile(convention.opening), convention.read) for convention in CONVENTIONS]


class Read(NamedTuple):
    """The calls in a text, what it says besides, and how much work it was to find that out."""

    calls: tuple[ModelCall, ...]
    text: str
    steps: int


@dataclass(slots=True)
class Findings:
    """What each convention found, by its rank, and what of the text is thought and not said."""

    found: dict[int, list[FoundCall]] = field(default_factory=dict)
    thoughts: list[Span] = field(default_factory=list)

    def add(self, rank: int, found: FoundCall) -> None:
        if found.calls:
            self.found.setdefault(rank, []).append(found)

    def spans(self, rank: int) -> list[Span]:
        return [span for found in self.found[rank] for span in found.spans]

    def calls(self, rank: int) -> tuple[ModelCall, ...]:
        return tuple(call for found in self.found[rank] for call in found.calls)


def read(text: str, known: Known) -> Read:
    """The calls of the first convention that finds any, and the text without them."""
    page = ScannedText(text, known)
    findings = _walk(page, _MARKS)
    if not findings.found:
        return Read((), without(text, findings.thoughts).strip(), page.steps)
    first = min(findings.found)
    said = without(text, [*findings.thoughts, *findings.spans(first)])
    return Read(findings.calls(first), said.strip(), page.steps)


def _walk(page: ScannedText, marks: re.Pattern[str]) -> Findings:
    findings = Findings()
    place = 0
    while mark := page.search(marks, place):
        place = max(_pass(page, mark, findings), mark.start() + 1)
    return findings


def _pass(page: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    """Take in what stands at a mark; answers where to go on."""
    match mark.lastgroup:
        case "thought":
            return _think(page, mark, findings)
        case "thought_end":  # what comes before was thought, too: the tag that opens it stood in the prompt
            findings.found.clear()
            findings.thoughts = [(0, mark.end())]
            return mark.end()
        case "ticks":
            return page.code_end(mark.start()) or mark.end()
        case "fence":
            return _read_fence(page, mark, findings)
        case _:
            return _read_call(page, mark, findings)


def _think(page: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    closing = page.find(THOUGHT_END, mark.end())
    end = len(page) if closing is None else closing + len(THOUGHT_END)
    findings.thoughts.append((mark.start(), end))
    return end


def _read_call(page: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    for rank, (opening, read_at) in enumerate(_READERS):
        if page.match(opening, mark.start()) and (found := read_at(page, mark.start())):
            findings.add(rank, found)
            return found.end
    return mark.end()


def _read_fence(page: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    """A block counts when there is nothing in it but calls. One that is not closed ends with the thought it is in."""
    fence = page.fence(mark)
    thought_end = None if fence.is_closed else page.find(THOUGHT_END, mark.end())
    if thought_end is not None:
        return thought_end
    inner = page.inner(*fence.inside)
    inside = _walk(inner, _OPENINGS)
    page.steps += inner.steps
    for rank in sorted(inside.found):
        if not without(inner.text, inside.spans(rank)).strip():
            findings.add(rank, FoundCall(fence.end, inside.calls(rank), ((mark.start(), fence.end),)))
            break
    return fence.end
