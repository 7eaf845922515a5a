"""Calls as ChatCLI teaches them: a tag with attributes, or an object. Names have an @ in front that is not theirs.

<tool_call name="@x" args='{"p": 1}' />    <tool name=@x></tool>    {"tool_call": "@x", "args": {"p": 1}}

Its last resort is a convention of its own, which counts only where no tags and objects are: [tool: @x {"p": 1}]
"""

import html
import re
from dataclasses import replace
from typing import Any, NamedTuple

from app.core.runs import ModelCall
from app.providers.conventions.objects import broken_at, broken_call, call, call_from_text, named_at, value_at
from app.providers.repairs import Broken
from app.providers.scanning import Convention, Found, Page

KEYS = ("args", "arguments")
DATA = ({"url"}, {"title", "snippet"}, {"type", "error"})
"""What is beside a name in answers of search engines and services, which are no calls."""

_TAG = re.compile(r"<(tool(?:_call)?+)(?=[\s/])", re.IGNORECASE)
_TAG_END = re.compile(r"</tool(?:_call)?+>|<tool(?:_call)?+[\s/>]", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([A-Za-z_][A-Za-z0-9_:.-]{0,63})[ \t]{0,8}=[ \t\r\n]{0,8}")
_VALUE = re.compile(r""""(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|[^\s"'<>][^\s<>]*+""", re.DOTALL)
_HEAD = re.compile(r"""\{\s{0,64}["'](?:tool_call|tool)["']\s{0,16}:\s{0,16}["'](@?[^"'\\]{1,255})["']""")
_BRACKET = re.compile(r"\[tool(?:_call)?+[ \t]{0,8}:[ \t]{0,8}@?([A-Za-z0-9_-]{1,255})\s{0,64}", re.IGNORECASE)
_BRACKET_END = re.compile(r"\s{0,64}\]")


class Tag(NamedTuple):
    """A tag with its attributes as they were written, quotes and all; or where it turned out to be none.

    `cut` is what was not closed when the text ended.
    """

    end: int
    attributes: dict[str, str]
    is_tag: bool = True
    is_closed: bool = True
    cut: int | None = None


def _read(page: Page, start: int) -> Found | None:
    return _read_object(page, start) if page.has("{", start) else _read_tag(page, start)


def _read_tag(page: Page, start: int) -> Found | None:
    opening = page.match(_TAG, start)
    if opening is None:
        return None
    tag = _tag(page, opening.end())
    name = _texts(tag.attributes.get("name", ""))[0].strip().removeprefix("@")
    offer = page.offer(name)
    if not tag.is_tag or offer is None:
        return Found(tag.end)
    if tag.cut is not None:
        reason = f"the call is not closed, from character {tag.cut - start} of it on"
        refused = broken_call(name, Broken(reason, tag.cut - start), page.cut(tag.cut, len(page)))
        return Found(tag.end, (refused,), ((start, tag.end),))
    body, end = _body(page, tag)
    texts = _texts(tag.attributes["args"]) if "args" in tag.attributes else [body, _unescaped(body)]
    calls = [call_from_text(name, offer, text, is_repaired=False) for text in texts]
    return Found(end, (_best(calls),), ((start, end),))


def _tag(page: Page, place: int) -> Tag:
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
    """Whether a value has no quotes, so that nobody can tell whether it is whole when the text ends."""
    return written[:1] not in ("'", '"') or not written


def _body(page: Page, tag: Tag) -> tuple[str, int]:
    """What stands between the tag and the one that closes it, if there is one before the next call."""
    closing = None if tag.is_closed else page.search(_TAG_END, tag.end)
    if closing is None or not closing[0].startswith("</"):
        return "", tag.end
    return page.cut(tag.end, closing.start()), closing.end()


def _texts(written: str) -> list[str]:
    """The ways in which an attribute can be meant, the one that ChatCLI knows first."""
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


def _read_object(page: Page, start: int) -> Found | None:
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
    return Found(piece.end, (call(name, offer, given, is_repaired=piece.mended.is_repaired),), ((start, piece.end),))


def _name(value: Any) -> str | None:
    """The tool an object calls. Where only a name says so it needs the @, and arguments beside it."""
    if not isinstance(value, dict) or any(keys <= set(value) for keys in DATA):
        return None
    name = next((value[key] for key in ("tool_call", "tool", "name") if key in value), None)
    if not isinstance(name, str):
        return None
    is_plain = "tool_call" not in value and "tool" not in value
    if is_plain and not (name.startswith("@") and any(key in value for key in KEYS)):
        return None
    return name.strip().removeprefix("@")


def _read_bracket(page: Page, start: int) -> Found | None:
    head = page.match(_BRACKET, start)
    offer = page.offer(head[1]) if head else None
    if head is None or offer is None:
        return None
    if not page.has("{", head.end()):
        return _read_flat(page, start, head)
    piece = value_at(page, head.end())
    if piece.mended is None:
        broken = broken_at(page, head.end(), piece, head[1])
        return Found(broken.end, broken.calls, ((start, broken.end),))
    closing_bracket = page.match(_BRACKET_END, piece.end)
    end = closing_bracket.end() if closing_bracket else piece.end
    made = call(head[1], offer, piece.mended.value, is_repaired=piece.mended.is_repaired)
    return Found(end, (made,), ((start, end),))


def _read_flat(page: Page, start: int, head: re.Match[str]) -> Found | None:
    """Without an object there are either no arguments, or free text."""
    closing = page.find("]", head.end())
    offer = page.offer(head[1])
    if offer is None:
        return None
    if closing is None:
        raw = page.cut(head.end(), len(page))
        refused = broken_call(head[1], Broken(f"the call is not closed, from character {len(raw)} on", len(raw)), raw)
        return Found(len(page), (refused,), ((start, len(page)),))
    given = page.cut(head.end(), closing).strip()
    return Found(closing + 1, (call_from_text(head[1], offer, given, is_repaired=False),), ((start, closing + 1),))


convention = Convention(name="chatcli", opening=r"(?i:<tool(?:_call)?+)[\s/]|\{", read=_read)
last_resort = Convention(name="chatcli-brackets", opening=r"(?i:\[tool(?:_call)?+)[ \t]{0,8}:", read=_read_bracket)
