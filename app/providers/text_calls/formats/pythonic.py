"""Calls as Llama 3.2 and 4, Olmo and LFM2 write them: a list of calls in Python, by itself on its lines.

[x(p="value", n=1), y()]

Arguments are literals with names. Nothing is evaluated: the tokens are rewritten as JSON.
"""

import re
from typing import NamedTuple

from app.core.runs import ModelCall
from app.providers.text_calls.formats.json_objects import broken_call
from app.providers.text_calls.json_repair import Broken, Token, loads, to_json_string, write_tokens
from app.providers.text_calls.scanner import CallFormat, FoundCall, ScannedText

MAX_DEPTH = 100
_SPECIAL = r"(?:<\|[a-z_]{1,32}\|>)?+"
_HEAD = re.compile(rf"{_SPECIAL}\[\s{{0,64}}([A-Za-z_][A-Za-z0-9_.-]{{0,255}})\(")
_CALL = re.compile(r"\s*+([A-Za-z_][A-Za-z0-9_.-]{0,255})\(")
_BETWEEN = re.compile(r"\s*+(?:(,)\s*+(?=[A-Za-z_])|,?+\s*+\])")
_ALONE = re.compile(rf"{_SPECIAL}[ \t\r]{{0,64}}(?:\n|\Z)")
_TOKEN = re.compile(
    r"""(?P<space>\s++)
    | (?P<long>\"{3}(?:[^"\\]++|\\.|"(?!""))*+\"{3}|'{3}(?:[^'\\]++|\\.|'(?!''))*+'{3})
    | (?P<string>"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')
    | (?P<number>-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?!\w))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    | (?P<open>[\[{(]) | (?P<close>[\]})]) | (?P<mark>[,:=])""",
    re.VERBOSE | re.DOTALL,
)


class Inside(NamedTuple):
    """What stands between the parentheses of a call, and where they close, or what cannot be read begins."""

    tokens: list[Token]
    end: int
    is_whole: bool = False


def _read(page: ScannedText, start: int) -> FoundCall | None:
    head = page.match(_HEAD, start)
    if head is None or page.offer(head[1]) is None or not page.begins_line(start):
        return None
    calls: list[ModelCall] = []
    place = page.text.index("[", start) + 1
    while opening := page.match(_CALL, place):
        inside = _inside(page, opening.end())
        end = inside.end if inside.is_whole else len(page)
        if page.offer(opening[1]):
            calls.append(_call(page, opening, inside))
        if end == len(page):
            return FoundCall(end, tuple(calls), ((start, end),))
        behind = page.match(_BETWEEN, end)
        if behind is None:
            return FoundCall(end)
        place = behind.end()
        if not behind[1]:
            break
    alone = page.match(_ALONE, place)
    return FoundCall(alone.end(), tuple(calls), ((start, alone.end()),)) if alone else FoundCall(place)


def _inside(page: ScannedText, start: int) -> Inside:
    tokens: list[Token] = []
    depth, place = 1, start
    while found := page.match(_TOKEN, place):
        place = found.end()
        depth += {"open": 1, "close": -1}.get(found.lastgroup or "", 0)
        if depth == 0 or depth > MAX_DEPTH:
            return Inside(tokens, place, is_whole=depth == 0 and found[0] == ")")
        if found.lastgroup != "space":
            tokens.append(Token(found.lastgroup or "", found[0]))
    return Inside(tokens, place)


def _call(page: ScannedText, opening: re.Match[str], inside: Inside) -> ModelCall:
    name, start = opening[1], opening.end()
    if not inside.is_whole:
        reason = f"they cannot be read from character {inside.end - start} on"
        return broken_call(name, Broken(reason, inside.end - start), page.cut(start, len(page)))
    try:
        return ModelCall(id=None, name=name, arguments=_arguments(inside.tokens))
    except Broken as error:
        return broken_call(name, error, page.cut(start, inside.end - 1))


def _arguments(tokens: list[Token]) -> dict[str, object]:
    """Raises `Broken` for what is no literal, or has no name."""
    arguments: dict[str, object] = {}
    for number, argument in enumerate(_split(tokens), 1):
        match argument:
            case [Token("name", name), Token("mark", "="), *value] if name not in arguments:
                arguments[name] = _literal(number, value)
            case _:
                raise Broken(f"argument {number} is no literal with a name of its own", 0)
    return arguments


def _literal(number: int, value: list[Token]) -> object:
    try:
        return loads(write_tokens(map(_plain, value))).value
    except Broken:
        raise Broken(f"argument {number} is no literal with a name of its own", 0) from None


def _plain(token: Token) -> Token:
    if token.kind == "long":
        return Token("literal", to_json_string(token.text, quotes=3))
    return token


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The arguments, at the commas that are in no brackets. There may be one behind the last."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        if depth == 0 and token.text == "," and token.kind == "mark":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if parts[-1] else parts[:-1]


call_format = CallFormat(
    name="pythonic", opening=rf"{_SPECIAL}\[\s{{0,64}}[A-Za-z_][A-Za-z0-9_.-]{{0,255}}\(", read=_read
)
