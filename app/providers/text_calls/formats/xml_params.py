"""Calls as elements with one element for each parameter, whose values are plain text without any escapes.

A value ends at its closing tag, when that is followed by the next parameter or the end of the call; any other closing
tag belongs to the value. Tags inside a value that pair up belong to it, too: it may quote a call. Where they do not
pair up, closing tags were forgotten, and a value ends where the next parameter begins on a line of its own or the call
ends. A call that is never closed is not whole, whatever parameters it has.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from app.core.runs import ModelCall, ToolOffer
from app.providers.text_calls.coercion import coerce
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText, Span


@dataclass(frozen=True, slots=True)
class Tags:
    """How the elements are written. `wrapper` and `unwrapper` may stand around calls; `trims`: values have a line
    break on each side that is not theirs."""

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    wrapper: str
    unwrapper: str
    name_in: re.Pattern[str]
    trims: bool = False


class Grammar:
    """The tags, ready to be looked for."""

    def __init__(self, tags: Tags) -> None:
        self.tags = tags
        self.call = re.compile(tags.call)
        self.wrapper = re.compile(tags.wrapper)
        self.unwrapper = re.compile(tags.unwrapper)
        self.call_end = re.compile(tags.call_end)
        parts = (tags.parameter, tags.parameter_end, tags.call, tags.call_end)
        self.tag = re.compile("|".join(f"({part})" for part in parts))
        self.behind_value = re.compile(f"{tags.parameter}|{tags.call_end}")
        self.behind_call = re.compile(f"{tags.call}|{tags.unwrapper}")

    def name(self, tag: str) -> str:
        found = self.tags.name_in.search(tag)
        return found[1].strip(" \"'") if found else ""


PARAMETER, PARAMETER_END, CALL, CALL_END = range(1, 5)


class Members(NamedTuple):
    texts: dict[str, str]
    end: int
    are_closed: bool = True


class Value(NamedTuple):
    end: int
    behind: int
    is_closed: bool = True


ReadValue = Callable[[ScannedText, int, Grammar], Value]


class _Unpaired(Exception):
    """Tags that do not pair up, and where that shows."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place


class _Unclosed(Exception):
    """The text ended first."""


class _Misplaced(Exception):
    """What does not belong into a call, and where."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class Element(NamedTuple):
    start: int
    end: int
    call: ModelCall | None


def read(page: ScannedText, start: int, grammar: Grammar) -> FoundCall | None:
    """All the calls that stand here in a row, with what is wrapped around them."""
    wrapper = page.match(grammar.wrapper, start)
    place = page.skip(wrapper.end()) if wrapper else start
    end = None
    elements: list[Element] = []
    while (element := _element(page, place, grammar)) is not None:
        elements.append(element)
        end = element.end
        place = page.skip(end)
    if end is None:
        return None
    unwrapper = page.match(grammar.unwrapper, place)
    end = unwrapper.end() if unwrapper else end
    calls = tuple(element.call for element in elements if element.call)
    if len(calls) == len(elements):
        return FoundCall(end, calls, ((start, end),))
    tags = [tag.span() for tag in (wrapper, unwrapper) if tag]
    spans = [(element.start, element.end) for element in elements if element.call]
    return FoundCall(end, calls, (*tags, *spans) if calls else ())


def _element(page: ScannedText, start: int, grammar: Grammar) -> Element | None:
    """One call, whole or not; None when there is none, or when the tag is only spoken of."""
    opening = page.match(grammar.call, start)
    if opening is None:
        return None
    name = grammar.name(opening[0])
    offer = page.offer(name)
    if opening[0].endswith("/>"):
        return Element(start, opening.end(), None if offer is None else _call(name, offer, Members({}, opening.end())))
    try:
        members = _members(page, opening.end(), grammar)
    except _Unclosed:
        reason = f"The call is not closed: the message ended at character {len(page) - start} of it; nothing was run."
        return Element(start, len(page), _refused(page, name, offer, (opening.end(), len(page)), reason))
    except _Misplaced as error:
        closing = page.search(grammar.call_end, error.place)
        if error.place == page.skip(opening.end()) and (closing is None or offer is None):
            return None  # without parameters and an end it is no call at all
        stop, end = closing.span() if closing else (len(page), len(page))
        reason = f"{error} at character {error.place - start} of the call; nothing was run."
        return Element(start, end, _refused(page, name, offer, (opening.end(), stop), reason))
    return Element(start, members.end, None if offer is None else _call(name, offer, members))


def _refused(page: ScannedText, name: str, offer: ToolOffer | None, inside: Span, reason: str) -> ModelCall | None:
    if offer is None:
        return None
    return ModelCall(id=None, name=name, arguments_error=reason, raw_arguments=page.cut(*inside))


def _call(name: str, offer: ToolOffer, members: Members) -> ModelCall:
    values = {member: coerce(text, member, offer.schema) for member, text in members.texts.items()}
    return ModelCall(
        id=None,
        name=name,
        arguments={member: value.value for member, value in values.items()},
        is_repaired=not members.are_closed or any(value.is_repaired for value in values.values()),
    )


def _members(page: ScannedText, start: int, grammar: Grammar) -> Members:
    """The parameters of a call. Pairing is tried only as long as not too much was looked at in vain."""
    if page.wasted <= len(page):
        try:
            return _gathered(page, start, grammar, _paired)
        except _Unpaired as error:
            page.wasted += error.place - start
    return _gathered(page, start, grammar, _unpaired)


def _gathered(page: ScannedText, start: int, grammar: Grammar, read_value: ReadValue) -> Members:
    texts: dict[str, str] = {}
    place, are_closed = page.skip(start), True
    while place < len(page):
        tag = page.match(grammar.tag, place)
        if tag is None or tag.lastindex not in (PARAMETER, CALL_END):
            raise _Misplaced("A parameter or the end was expected", place)
        if tag.lastindex == CALL_END:
            return Members(texts, tag.end(), are_closed)
        name = grammar.name(tag[0])
        if name in texts:
            raise _Misplaced(f"The parameter {name} has a second value", place)
        value = read_value(page, tag.end(), grammar)
        texts[name] = _trimmed(page.cut(tag.end(), value.end), grammar)
        are_closed = are_closed and value.is_closed
        place = page.skip(value.behind)
    raise _Unclosed


def _paired(page: ScannedText, start: int, grammar: Grammar) -> Value:
    """Where a value ends in which all tags pair up."""
    opened = [PARAMETER]
    place = start
    while tag := page.search(grammar.tag, place):
        place = tag.end()
        if tag.lastindex in (PARAMETER, CALL):
            opened.append(tag.lastindex)
        elif opened[-1] != (PARAMETER if tag.lastindex == PARAMETER_END else CALL):
            raise _Unpaired(place)
        elif len(opened) > 1:
            opened.pop()
        elif _stands(page, grammar.behind_value, place):
            return Value(tag.start(), place)
    raise _Unclosed


def _unpaired(page: ScannedText, start: int, grammar: Grammar) -> Value:
    """Where a value ends at the latest, whatever closing tags were forgotten."""
    place = start
    while tag := page.search(grammar.tag, place):
        place = tag.end()
        if tag.lastindex == PARAMETER_END and _stands(page, grammar.behind_value, place):
            return Value(tag.start(), place)
        if (tag.lastindex == PARAMETER and page.begins_line(tag.start())) or (
            tag.lastindex == CALL_END and _stands(page, grammar.behind_call, place)
        ):
            end = start + len(page.cut(start, tag.start()).rstrip())  # without the line break before the tag
            return Value(end, tag.start(), is_closed=False)
    raise _Unclosed


def _stands(page: ScannedText, pattern: re.Pattern[str], place: int) -> bool:
    """Whether this, or the end, is what comes next."""
    after = page.skip(place)
    return after == len(page) or page.match(pattern, after) is not None


def _trimmed(text: str, grammar: Grammar) -> str:
    if not grammar.tags.trims:
        return text
    line_break = "\r\n" if text.startswith("\r\n") else "\n"
    return text.removeprefix(line_break).removesuffix(line_break)


_QWEN = Grammar(
    Tags(
        call=r"<function=[^<>\n]{1,256}>",
        call_end="</function>",
        parameter=r"<parameter=[^<>\n]{1,256}>",
        parameter_end="</parameter>",
        wrapper="<tool_call>",
        unwrapper="</tool_call>",
        name_in=re.compile(r"=([^>]*)"),
        trims=True,
    )
)


qwen = CallFormat(name="qwen", opening="<tool_call>|<function=", read=lambda page, start: read(page, start, _QWEN))
"""Qwen3-Coder and its relatives. A value has a line break on each side that is not its own.

<tool_call><function=x><parameter=p>
value
</parameter></function></tool_call>
"""


_PREFIX = "(?:antml:)?+"
_NAMED = r"""[ \t\r\n]{1,8}name[ ]?=[ ]?(?:"[^"<>\n]{1,256}"|'[^'<>\n]{1,256}')[^<>\n]{0,128}>"""
_CLAUDE = Grammar(
    Tags(
        call=f"<{_PREFIX}invoke{_NAMED}",
        call_end=f"</{_PREFIX}invoke>",
        parameter=f"<{_PREFIX}parameter{_NAMED}",
        parameter_end=f"</{_PREFIX}parameter>",
        wrapper=f"<(?:{_PREFIX}function_calls|minimax:tool_call)>",
        unwrapper=f"</(?:{_PREFIX}function_calls|minimax:tool_call)>",
        name_in=re.compile(r"""name[ ]?=[ ]?("[^"]*"|'[^']*')"""),
    )
)


claude = CallFormat(
    name="claude",
    opening=rf"<(?:{_PREFIX}(?:function_calls>|invoke[ \t\r\n])|minimax:tool_call>)",
    read=lambda page, start: read(page, start, _CLAUDE),
)
"""Claude without a tool interface, and MiniMax with a wrapper of its own.

<function_calls><invoke name="x"><parameter name="p">value</parameter></invoke></function_calls>
"""
