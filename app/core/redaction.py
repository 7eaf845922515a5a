"""Redaction: no secret is stored, published or logged in plain text.

Registered values are found in every encoding they may have: unchanged, line by
line, escaped for JSON or a URL, in base64 at any alignment. Values that only look
like a key are found by their shape. Text is searched first and changed only after
a match, so that the common case is cheap.
"""

import base64
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from app.core.util.json_codec import dumps

MARK = "[redacted]"
MIN_FORM = 6  # characters: shorter ones would match unrelated text
MIN_LINE = 12
MIN_TOKEN = 16
MAX_HELD = 16_384  # characters of a line or a private key that a stream holds back

_TOKEN = r"[A-Za-z0-9._~+/=-]"
_START = r"(?<![A-Za-z0-9])"
_PEM_BODY = r"(?:[A-Za-z0-9+/=:,. \r\n\t-]|\\[rnt])*?"
_PEM_END = re.compile(r"-----END (?:[A-Z0-9]+ )*[A-Z]+-----")
_PEM = r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"

SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (hint, re.compile(pattern))
    for hint, pattern in (
        ("sk-", rf"{_START}sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{{16,}}"),
        ("k_live_", rf"{_START}[rs]k_live_[A-Za-z0-9]{{16,}}"),
        ("gh", rf"{_START}gh[pousr]_[A-Za-z0-9]{{36,}}"),
        ("github_pat_", rf"{_START}github_pat_[A-Za-z0-9_]{{22,}}"),
        ("glpat-", rf"{_START}glpat-[A-Za-z0-9_-]{{20,}}"),
        ("AKIA", rf"{_START}AKIA[0-9A-Z]{{16}}(?![0-9A-Z])"),
        ("ASIA", rf"{_START}ASIA[0-9A-Z]{{16}}(?![0-9A-Z])"),
        ("AIza", rf"{_START}AIza[0-9A-Za-z_-]{{35}}"),
        ("xox", rf"{_START}xox[abposr]-[A-Za-z0-9-]{{10,}}"),
        ("npm_", rf"{_START}npm_[A-Za-z0-9]{{36}}"),
        ("hf_", rf"{_START}hf_[A-Za-z0-9]{{30,}}"),
        ("pypi-", rf"{_START}pypi-[A-Za-z0-9_-]{{50,}}"),
        ("tk_", rf"{_START}tk_[A-Za-z0-9_-]{{43}}"),
        ("tt_", rf"{_START}tt_[A-Za-z0-9_-]{{43}}"),
        ("eyJ", rf"{_START}eyJ[A-Za-z0-9_-]{{8,}}\.eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]*"),
        ("PRIVATE KEY-----", rf"{_PEM}{_PEM_BODY}(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY-----|(?=[\"\\]|\Z))"),
        ("://", r"(?P<kept>://[^\s/:@\"'\\]*:)[^\s/@\"'\\]+(?=@)"),
        ("uthorization", rf"(?P<kept>[Aa]uthorization[\"'\\]{{0,4}}\s*[:=]\s*[\"'\\]{{0,4}}(?:\w+ )?){_TOKEN}{{6,}}"),
        ("earer ", rf"(?P<kept>\b[Bb]earer )(?=[A-Za-z._~+/=-]*\d){_TOKEN}{{16,}}"),
    )
)
"""Patterns of well-known keys. The hint is a substring that a match must contain: a cheap first test."""


class Redactor:
    """Everything that is stored, published or logged passes through here. In tool output only registered values
    are redacted by default: an edit based on redacted text would not match the file."""

    def __init__(self, values: Iterable[str] = (), *, shapes_in_output: bool = False) -> None:
        self.shapes_in_output = shapes_in_output
        self._own_key: tuple[str, ...] = ()
        self._parts: dict[str, frozenset[str]] = {}
        self.replace(values)

    def add_own_key(self, token: str) -> None:
        """Also redact the service's own key, unless it is short enough to be a word."""
        if len(token) >= MIN_TOKEN:
            self._own_key = (token,)
            self.replace(self._registered)

    def replace(self, values: Iterable[str]) -> None:
        """Replace the registered values."""
        self._registered = frozenset(values)
        known = self._registered.union(self._own_key, *self._parts.values())
        self._forms = sorted({form for value in known for form in forms_of(value)})
        self._max_length = max(map(len, self._forms), default=0)
        self._firsts = frozenset(form[0] for form in self._forms)
        self._values = any_of(self._forms) if self._forms else None

    def part(self, part: str) -> "Part":
        """A separate list of values that are redacted too."""
        return Part(self, part)

    def replace_part(self, part: str, values: Iterable[str]) -> None:
        self._parts[part] = frozenset(value for value in values if len(value) >= MIN_TOKEN)
        self.replace(self._registered)

    def text(self, text: str, *, is_output: bool = False) -> str:
        if self._values is not None:
            text = self._values.sub(MARK, text)
        if self._checks_shapes(is_output):
            for hint, pattern in SHAPES:
                if hint in text:
                    text = pattern.sub(_mark, text)
        return text

    def json(self, text: str, *, is_output: bool = False) -> str:
        """Redact JSON text by its strings and numbers, so that it stays valid JSON."""
        if not self.finds(text, is_output=is_output):
            return text
        return dumps(self._walk(json.loads(text), is_output)).decode()

    def finds(self, text: str, *, is_output: bool = False) -> bool:
        """Whether there is anything to redact."""
        if self._values is not None and self._values.search(text):
            return True
        return self._checks_shapes(is_output) and _has_shape(text)

    def stream(self) -> "OutputStream":
        return OutputStream(self)

    def safe_end(self, text: str, *, is_whole: bool = False) -> int:
        """Where a chunk can be cut, so that no value crosses the cut.

        A chunk that `is_whole` may end within a line: the rest of a possible key shape is not waited for.
        """
        end = len(text)
        for start in range(max(0, end - self._max_length + 1), end):
            if text[start] in self._firsts and self._is_prefix(text[start:]):
                end = start
                break
        if self.shapes_in_output and not is_whole:
            end = min(end, len(text) - _unfinished_length(text))
        if self._values is not None and end < len(text):
            for match in self._values.finditer(text):
                if match.start() < end < match.end():
                    end = match.start()
        return end

    def _is_prefix(self, tail: str) -> bool:
        """Whether a longer form starts with this."""
        index = bisect_right(self._forms, tail)
        return index < len(self._forms) and self._forms[index].startswith(tail)

    def _checks_shapes(self, is_output: bool) -> bool:
        return not is_output or self.shapes_in_output

    def _walk(self, value: Any, is_output: bool) -> Any:
        match value:
            case str():
                return self.text(value, is_output=is_output)
            case dict():
                return {self.text(k, is_output=is_output): self._walk(v, is_output) for k, v in value.items()}
            case list():
                return [self._walk(item, is_output) for item in value]
            case int() | float() if not isinstance(value, bool) and self.finds(json.dumps(value), is_output=is_output):
                return MARK
            case _:
                return value


class Part:
    """A list of values that other systems chose: those short enough to be a word are not redacted."""

    def __init__(self, redactor: Redactor, name: str) -> None:
        self._redactor = redactor
        self._name = name

    def replace(self, values: Iterable[str]) -> None:
        """Replace the values of this part."""
        self._redactor.replace_part(self._name, values)


class OutputStream:
    """Redacts a stream of chunks; the end of a chunk is held back while a secret may start there."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, text: str) -> str:
        """Add a chunk; returns what can be published now."""
        text = self._held + text
        end = self._redactor.safe_end(text)
        self._held = text[end:]
        return self._redactor.text(text[:end], is_output=True)

    def pause(self) -> str:
        """Return what was held back only because its line had not ended."""
        end = self._redactor.safe_end(self._held, is_whole=True)
        text, self._held = self._held[:end], self._held[end:]
        return self._redactor.text(text, is_output=True)

    def finish(self) -> str:
        """Return the rest that was held back."""
        held, self._held = self._held, ""
        return self._redactor.text(held, is_output=True)


def any_of(forms: Iterable[str]) -> re.Pattern[str]:
    """One pattern for all forms, the longest first; branched by the first character, which is fast for many forms."""
    branches: defaultdict[str, list[str]] = defaultdict(list)
    for form in sorted(forms, key=len, reverse=True):
        branches[form[0]].append(re.escape(form[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in branches.items()))


def forms_of(value: str) -> Iterator[str]:
    """A value in every encoding it may have."""
    lines = [line.strip() for line in value.splitlines()]
    parts = {value, value.strip(), *(line for line in lines if len(lines) > 1 and len(line) >= MIN_LINE)}
    for part in parts:
        escaped = {json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
        twice = {json.dumps(form, ensure_ascii=False)[1:-1] for form in escaped}
        slashed = {form.replace("/", "\\/") for form in escaped}
        quoted = {quote(part, safe=""), quote(part), quote_plus(part)}
        lower = {re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), form) for form in quoted}
        plain = {part, *escaped, *twice, *slashed, *quoted, *lower, *_base64_forms(part.encode("utf-8", "replace"))}
        yield from (form for form in plain if len(form) >= MIN_FORM)


def _base64_forms(data: bytes) -> Iterator[str]:
    """The base64 characters that depend only on the value, for each alignment in a group of three bytes."""
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + data).decode()
        begin = (0, 2, 3)[shift]
        end = len(whole) - (0, 3, 2)[(shift + len(data)) % 3]
        core = whole[begin:end]
        yield core
        yield core.replace("+", "-").replace("/", "_")


def _has_shape(text: str) -> bool:
    for hint, pattern in SHAPES:  # noqa: SIM110 - runs for every call, at half the cost of `any`
        if hint in text and pattern.search(text):
            return True
    return False


def _mark(match: re.Match[str]) -> str:
    return (match.groupdict().get("kept") or "") + MARK


def _unfinished_length(text: str) -> int:
    """The length of the end that may be an unfinished shape: the last line, or a private key without its end."""
    start = text.rfind("\n") + 1
    begun = text.rfind("-----BEGIN ")
    if begun >= 0 and not _PEM_END.search(text, begun, start):
        start = min(start, begun)
    if len(text) - start > MAX_HELD:
        start = max(text.rfind(" ", 0, len(text) - MAX_HELD) + 1, len(text) - 2 * MAX_HELD)
    return len(text) - start
