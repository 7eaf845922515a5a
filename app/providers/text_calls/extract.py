"""Calls in plain text: one scan from left to right, past thinking and code blocks.

A call inside another one is part of its arguments, whatever it looks like.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.runs import Known, ModelCall
from app.providers.text_calls.formats import FORMATS
from app.providers.text_calls.scanner import FENCE, FoundCall, ScannedText, Span, without

THOUGHT_END = "</think>"
_OPENING = "|".join(call_format.opening for call_format in FORMATS)
_OPENINGS = re.compile(f"(?P<opening>{_OPENING})")
_MARKS = re.compile(
    rf"(?P<thought><think>)|(?P<thought_end>{THOUGHT_END})|(?P<fence>{FENCE})|(?P<ticks>`++)|(?P<opening>{_OPENING})",
    re.MULTILINE,
)
_READERS = [(re.compile(call_format.opening), call_format.read) for call_format in FORMATS]


class Read(NamedTuple):
    """The calls in a text, the text without them, and the number of characters looked at."""

    calls: tuple[ModelCall, ...]
    text: str
    steps: int


@dataclass(slots=True)
class Findings:
    """What each format found, by its rank, and the spans of thinking."""

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
    """The calls of the first format that finds any, and the text without them."""
    scanned = ScannedText(text, known)
    findings = _scan(scanned, _MARKS)
    if not findings.found:
        return Read((), without(text, findings.thoughts).strip(), scanned.steps)
    first = min(findings.found)
    rest = without(text, [*findings.thoughts, *findings.spans(first)])
    return Read(findings.calls(first), rest.strip(), scanned.steps)


def _scan(text: ScannedText, marks: re.Pattern[str]) -> Findings:
    findings = Findings()
    position = 0
    while mark := text.search(marks, position):
        position = max(_read_mark(text, mark, findings), mark.start() + 1)
    return findings


def _read_mark(text: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    """Read what begins at a mark; returns where to continue."""
    match mark.lastgroup:
        case "thought":
            closing = text.find(THOUGHT_END, mark.end())
            end = len(text) if closing is None else closing + len(THOUGHT_END)
            findings.thoughts.append((mark.start(), end))
            return end
        case "thought_end":  # all text before was thinking: its opening tag was in the prompt
            findings.found.clear()
            findings.thoughts = [(0, mark.end())]
            return mark.end()
        case "ticks":
            return text.code_end(mark.start()) or mark.end()
        case "fence":
            return _read_fence(text, mark, findings)
        case _:
            for rank, (opening, read_at) in enumerate(_READERS):
                if text.match(opening, mark.start()) and (found := read_at(text, mark.start())):
                    findings.add(rank, found)
                    return found.end
            return mark.end()


def _read_fence(text: ScannedText, mark: re.Match[str], findings: Findings) -> int:
    """A code block counts when it contains only calls. An unclosed one ends with the thinking around it."""
    fence = text.fence(mark)
    thought_end = None if fence.is_closed else text.find(THOUGHT_END, mark.end())
    if thought_end is not None:
        return thought_end
    inner = text.inner(*fence.inside)
    inside = _scan(inner, _OPENINGS)
    text.steps += inner.steps
    for rank in sorted(inside.found):
        if not without(inner.text, inside.spans(rank)).strip():
            findings.add(rank, FoundCall(fence.end, inside.calls(rank), ((mark.start(), fence.end),)))
            break
    return fence.end
