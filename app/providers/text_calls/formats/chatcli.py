"""Calls as ChatCLI teaches them: a tag with attributes, or an object. Names have an @ in front that is not theirs.

<tool_call name="@x" args='{"p": 1}' />    <tool name=@x></tool>    {"tool_call": "@x", "args": {"p": 1}}

Its last resort is a convention of its own, which counts only where no tags and objects are: [tool: @x {"p": 1}]
"""

import html
import re
from dataclasses import replace
from typing import Any, NamedTuple

from app.core.runs import ModelCall, ToolOffer
from app.providers.text_calls.formats.json_objects import (
    broken_at,
    broken_call,
    call,
    call_from_text,
    named_at,
    value_at,
)
from app.providers.text_calls.json_repair import Broken
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

KEYS = ("args", "arguments")
DATA = ({"url"}, {"title", "snippet"}, {"type", "error"})
"""Keys of search results and other data that are not calls."""

ENOUGH = 2
"""Signs needed for an object to be a call: the @ of the name, a `tool` key, arguments."""

_TAG = re.compile(r"<(tool(?:_call)?+)(?=[\s/])", re.IGNORECASE)
_TAG_END = re.compile(r"</tool(?:_call)?+>|<tool(?:_call)?+[\s/>]", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([A-Za-z_][A-Za-z0-9_:.-]{0,63})[ \t]{0,8}=[ \t\r\n]{0,8}")
_VALUE = re.compile(r""""(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|[^\s"'<>][^\s<>]*+""", re.DOTALL)
_HEAD = re.compile(r"""\{\s{0,64}["'](?:tool_call|tool)["']\s{0,16}:\s{0,16}["'](@[^"'\\]{1,255})["']""")
_BRACKET = re.compile(r"\[tool(?:_call)?+[ \t]{0,8}:[ \t]{0,8}(@?)([A-Za-z0-9_-]{1,255})\s{0,64}", re.IGNORECASE)
_BRACKET_END = re.compile(r"\s{0,64}\]")


class Tag(NamedTuple):
    """A tag with its attributes, quotes included; `cut` is where an unclosed one starts."""

    end: int
    attributes: dict[str, str]
    is_tag: bool = True
    is_closed: bool = True
    cut: int | None = None


class Body(NamedTuple):
    text: str
    end: int
    cut: int | None = None


def _read(page: ScannedText, start: int) -> FoundCall | None:
    return _read_object(page, start) if page.has("{", start) else _read_tag(page, start)


def _read_tag(page: ScannedText, start: int) -> FoundCall | None:
    opening = page.match(_TAG, start)
    if opening is None:
        return None
    tag = _tag(page, opening.end())
    name = _texts(tag.attributes.get("name", ""))[0].strip().removeprefix("@")
    offer = page.offer(name)
    if not tag.is_tag:
        return FoundCall(tag.end)
    body = _body(page, tag)
    if offer is None:
        return FoundCall(body.end)
    if body.cut is not None:
        reason = f"the call is not closed, from character {body.cut - start} of it on"
        refused = broken_call(name, Broken(reason, body.cut - start), page.cut(body.cut, body.end))
        return FoundCall(body.end, (refused,), ((start, body.end),))
    texts = _texts(tag.attributes["args"]) if "args" in tag.attributes else [body.text, _unescaped(body.text)]
    calls = [call_from_text(name, offer, text, is_repaired=False) for text in texts]
    return FoundCall(body.end, (_best(calls),), ((start, body.end),))


def _tag(page: ScannedText, place: int) -> Tag:
    """The attributes of a tag, up to its end."""
    attributes: dict[str, str] = {}
    while (place := page.skip(place)) < len(page):
        if page.has("/>", place) or page.has(">", place):
            is_closed = page.has("/", place)
            return Tag(place + 1 + is_closed, attributes, is_closed=is_closed)
        name = page.match(_ATTRIBUTE, place)
        if name is None:
            return Tag(place, attributes, is_tag=False)
        value = page.match(_VALUE, name.end())
        if value is None and page.text[name.end() : name.end() + 1] in ("<", ">"):
            return Tag(name.end(), attributes, is_tag=False)
        if value is None:
            return Tag(len(page), attributes, cut=name.end())
        written, place = value[0], value.end()
        if _is_bare(written) and written.endswith("/") and page.has(">", place):
            written, place = written[:-1], place - 1
        attributes.setdefault(name[1].lower(), written)
    is_whole = not any(_is_bare(attributes.get(name, "")) for name in ("name", "args"))
    return Tag(len(page), attributes, cut=None if is_whole else len(page))


def _is_bare(written: str) -> bool:
    """Whether a value has no quotes, so that it may be incomplete at the end of the text."""
    return written[:1] not in ("'", '"') or not written


def _body(page: ScannedText, tag: Tag) -> Body:
    """The text between the tag and its closing tag, if there is one before the next call.

    It has the arguments when the tag has none; then the closing tag is required, or they may be incomplete.
    """
    if tag.is_closed or tag.cut is not None:
        return Body("", tag.end, tag.cut)
    closing = page.search(_TAG_END, tag.end)
    if closing is not None and closing[0].startswith("</"):
        return Body(page.cut(tag.end, closing.start()), closing.end())
    if "args" in tag.attributes:
        return Body("", tag.end)
    return Body("", closing.start() if closing else len(page), cut=tag.end)


def _texts(written: str) -> list[str]:
    """The possible readings of an attribute, ChatCLI's own first."""
    if _is_bare(written):
        return [_unescaped(written)]
    inner = written[1:-1]
    plain = re.sub(rf"\\([\\{written[0]}])", r"\1", inner)
    return [_unescaped(plain), _unescaped(inner), plain, inner]


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number of more digits than Python converts
        return text


def _best(calls: list[ModelCall]) -> ModelCall:
    """The first that can be read; else the first."""
    if calls[0].arguments_error is None:
        return calls[0]
    readable = next((call for call in calls if call.arguments_error is None), None)
    return replace(readable, is_repaired=True) if readable else calls[0]


def _read_object(page: ScannedText, start: int) -> FoundCall | None:
    piece = value_at(page, start)
    if piece.mended is None:
        name = named_at(page, start, _HEAD)
        return broken_at(page, start, piece, name) if name else None
    value = piece.mended.value
    name = _name(value)
    offer = page.offer(name)
    if name is None or offer is None:
        return None
    given = next((value[key] for key in KEYS if key in value), None)
    return FoundCall(
        piece.end, (call(name, offer, given, is_repaired=piece.mended.is_repaired),), ((start, piece.end),)
    )


def _name(value: Any) -> str | None:
    """The tool that an object calls, if it is a call and not data."""
    if not isinstance(value, dict) or any(keys <= set(value) for keys in DATA):
        return None
    name = next((value[key] for key in ("tool_call", "tool", "name") if key in value), None)
    if not isinstance(name, str):
        return None
    signs = (name.startswith("@"), "tool_call" in value or "tool" in value, any(key in value for key in KEYS))
    if sum(signs) < ENOUGH:
        return None
    return name.strip().removeprefix("@")


def _read_bracket(page: ScannedText, start: int) -> FoundCall | None:
    head = page.match(_BRACKET, start)
    name = head[2] if head else ""
    offer = page.offer(name)
    if head is None or offer is None:
        return None
    if not page.has("{", head.end()):
        return _read_flat(page, start, head, offer) if head[1] else None
    piece = value_at(page, head.end())
    if piece.mended is None:
        broken = broken_at(page, head.end(), piece, name)
        return FoundCall(broken.end, broken.calls, ((start, broken.end),))
    closing = page.match(_BRACKET_END, piece.end)
    end = closing.end() if closing else piece.end
    return FoundCall(
        end, (call(name, offer, piece.mended.value, is_repaired=piece.mended.is_repaired),), ((start, end),)
    )


def _read_flat(page: ScannedText, start: int, head: re.Match[str], offer: ToolOffer) -> FoundCall:
    """Without an object there are either no arguments, or free text."""
    name = head[2]
    closing = page.find("]", head.end())
    end = len(page) if closing is None else closing + 1
    raw = page.cut(head.end(), end if closing is None else closing).strip()
    if closing is None:
        model_call = broken_call(
            name, Broken(f"the call is not closed, from character {end - start} of it on", end - start), raw
        )
    else:
        model_call = call_from_text(name, offer, raw, is_repaired=False)
    return FoundCall(end, (model_call,), ((start, end),))


call_format = CallFormat(name="chatcli", opening=r"(?i:<tool(?:_call)?+)[\s/]|\{", read=_read)
bracket_format = CallFormat(name="chatcli-brackets", opening=r"(?i:\[tool(?:_call)?+)[ \t]{0,8}:", read=_read_bracket)
