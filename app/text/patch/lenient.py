"""A lenient parser for patches as models send them: unwrapped, converted to the grammar, then parsed.

It accepts these deviations, because models make them and they have only one meaning:

    wrapped   in JSON, in a here-document, in a fence with or without prose around it, in white space
    markers   `*** Begin Patch ***`, white space around markers and paths, CRLF, an environment, the end twice
    paths     in quotes or backticks, or beginning with `./`
    add       a file without lines
    hunks     an empty line instead of one space, nothing after `@@ `, blank lines and hunks after `*** End of File`

What is ambiguous, or may have been cut off, is an error that quotes what was received.
"""

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.errors import InvalidArgs
from app.text.patch.parse import (
    ADD,
    BEGIN,
    DELETE,
    END,
    END_OF_FILE,
    HEADER,
    MARKS,
    MOVE,
    UPDATE,
    Add,
    Operation,
    Update,
    parse_lines,
    syntax_error,
)

ENVIRONMENT = "*** Environment ID:"
NAMES = ("apply_patch", "applypatch")
KEYS = ("input", "patch", "patchText", "command", "cmd")
MAX_WRAPS = 4
MAX_SHOWN_LENGTH = 120

_HEREDOC = re.compile(
    r"(?:%%bash[ \t]*\n)?(?:apply_?patch[ \t]*)?<<-?[ \t]*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)[ \t\r]*\n"
)
_COMMAND = re.compile(r"apply_?patch[ \t\r]*\n")
_FOLDER = re.compile(r"cd[ \t]+(?P<folder>[^\n&;]{1,200}?)[ \t]*(?:&&|;|\n)\s*apply_?patch\b")
_OPENING = re.compile(
    r"^[ \t]*+(?:`{3,}+|~{3,}+)[^\n`]*+\n(?=\s*+(?:\*\*\* Begin Patch|%%bash|apply_?patch|<<))", re.MULTILINE
)
_CLOSING = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[ \t\r]*$", re.MULTILINE)
_LAST = re.compile(r"^[ \t]*\*\*\* End Patch(?: \*\*\*)?[ \t\r]*$", re.MULTILINE)
_UNIFIED = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@")


def read(text: str) -> list[Operation]:
    """The operations of a patch, however it is wrapped. Raises `InvalidArgs`, which quotes what was received."""
    lines = [line.removesuffix("\r") for line in _unwrap(text).split("\n")]
    if not _is_marker(lines[0], BEGIN):
        raise syntax_error(1, lines[0], f"the patch must begin with the line `{BEGIN}`.{_guess(lines)}")
    if len(lines) == 1 or not _is_marker(lines[-1], END):
        raise syntax_error(
            len(lines),
            lines[-1],
            f"the patch must end with the line `{END}`; it may have been cut off, send all of it.",
        )
    if lines[-2].rstrip() == END:
        lines.pop()
    normalizer = _Normalizer()
    for number, line in enumerate(lines[1:-1], 2):
        normalizer.take(number, line)
    normalizer.close()
    operations = parse_lines([BEGIN, *normalizer.lines, END], [1, *normalizer.numbers, len(lines)])
    return [_complete(operation, normalizer) for operation in operations]


def _operation_marker(line: str) -> str | None:
    return next((marker for marker in (ADD, DELETE, UPDATE) if line.startswith(marker)), None)


@dataclass(slots=True)
class _Normalizer:
    """The lines between the markers, converted to the grammar."""

    lines: list[str] = field(default_factory=list)
    #: The original number of each line.
    numbers: list[int] = field(default_factory=list)
    #: The marker of the current operation.
    state: str = BEGIN
    #: The number of lines of the current operation.
    size: int = 0
    #: Added files without lines, which the grammar does not have, by their numbers.
    empty: set[int] = field(default_factory=set)
    #: Hunks at the end of their files, by their numbers: in the grammar only the last hunk can be one.
    last: set[int] = field(default_factory=set)
    #: The number of the current hunk.
    hunk: int = 0
    #: The current hunk had `*** End of File`.
    is_over: bool = False

    def take(self, number: int, line: str) -> None:
        if self.state == UPDATE and self.size and not self.is_over and line.startswith(MARKS):
            self._put(number, line)  # the usual case: a line of a hunk
            return
        # Within an update only the right side is stripped: an indented line is context.
        bare = line.rstrip() if self.state == UPDATE else line.strip()
        marker = _operation_marker(bare) if bare.startswith("***") else None
        if marker is not None:
            self.close()
            self._put(number, marker + _path(bare[len(marker) :]))
            self.state, self.size, self.is_over = marker, 0, False
        elif self.state == UPDATE:
            self._take_change(number, line, bare)
        elif self.state == BEGIN and bare.startswith(ENVIRONMENT):
            if self.size or not bare[len(ENVIRONMENT) :].strip():
                raise syntax_error(number, line, "an environment may be named once, with an id.")
            self.size = 1
        else:
            self._put(number, line if line.startswith("+") else bare)

    def close(self) -> None:
        """End the operation; an added file without lines gets one for the grammar."""
        if self.state == ADD and self.lines[-1].startswith(ADD):
            self.empty.add(self.numbers[-1])
            self._put(self.numbers[-1], "+")

    def _take_change(self, number: int, line: str, bare: str) -> None:
        if bare.startswith(MOVE) and not self.size:
            self._put(number, MOVE + _path(bare[len(MOVE) :]))
            self.size = 0
        elif self.is_over and not bare:
            return
        elif self.is_over and not bare.startswith(HEADER):
            raise syntax_error(number, line, f"after `{END_OF_FILE}` a hunk begins with `@@`.")
        elif bare == END_OF_FILE:
            self._end_hunk(number, line)
        else:
            self._put_change(number, line or " ", bare)

    def _put_change(self, number: int, line: str, bare: str) -> None:
        is_header = bare.startswith(HEADER)
        if is_header:
            _require_header(number, bare)
        if not self.size or (is_header and not self.lines[-1].startswith(HEADER)):
            self.hunk, self.is_over = number, False
        self._put(number, bare if is_header else line)

    def _end_hunk(self, number: int, line: str) -> None:
        if not self.size:
            return  # ignored before the first hunk
        if self.lines[-1].startswith(HEADER):
            raise syntax_error(
                number, line, "the hunk before it has no lines; give its context, deleted and added lines."
            )
        self.last.add(self.hunk)
        self.is_over = True

    def _put(self, number: int, line: str) -> None:
        self.lines.append(line)
        self.numbers.append(number)
        self.size += 1


def _complete(operation: Operation, normalizer: _Normalizer) -> Operation:
    """The operation with what the grammar cannot express. Raises `InvalidArgs` if it changes nothing."""
    if isinstance(operation, Add) and operation.line in normalizer.empty:
        return replace(operation, lines=())
    if not isinstance(operation, Update):
        return operation
    if not operation.hunks:
        what = "the update has no hunk; give what changes, or one context line if the file only moves."
        raise syntax_error(operation.line, UPDATE + operation.path, what)
    for hunk in operation.hunks:
        if not hunk.lines:
            header = " ".join([HEADER, *hunk.headers[-1:]])
            raise syntax_error(hunk.line, header, "the hunk has no lines; give its context, deleted and added lines.")
    hunks = (replace(hunk, is_at_end=hunk.line in normalizer.last) for hunk in operation.hunks)
    return replace(operation, hunks=tuple(hunks))


def _unwrap(text: str) -> str:
    """The patch without JSON, shell command or fence around it."""
    for _ in range(MAX_WRAPS):
        text = text.strip().removeprefix("\ufeff")
        if text.startswith(BEGIN):
            break
        inner = _from_shell(text) or _from_json(text) or _from_fence(text)
        if inner is None:
            break
        text = inner
    return _without_fence_after(text.strip())


def _from_shell(text: str) -> str | None:
    if folder := _FOLDER.match(text):
        raise InvalidArgs(
            f"The patch is wrapped in a shell command that changes to `{folder['folder'].strip()}` first; send only the"
            " patch, with paths relative to the workspace."
        )
    if plain := _COMMAND.match(text):
        return text[plain.end() :]
    start = _HEREDOC.match(text)
    if start is None:
        return None
    body = text[start.end() :].rstrip()
    head, _, last = body.rpartition("\n")
    return head if last.endswith(start["word"]) else body


def _from_json(text: str) -> str | None:
    if not text.startswith(("{", "[", '"')):
        return None
    try:
        # Not strict: models do not escape line ends in strings.
        return _patch_in(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        raise InvalidArgs(
            f"The patch begins like JSON, `{_cut(text)}`, but is not valid JSON; send the text of the patch itself,"
            f" from `{BEGIN}` to `{END}`."
        ) from None


def _patch_in(value: Any) -> str:
    match value:
        case str():
            return value
        case dict() if named := [value[key] for key in KEYS if isinstance(value.get(key), str | list)]:
            return _patch_in(named[0])
        case [str() as name, str() as patch] if name in NAMES:
            return patch
        case [str(), "-c" | "-lc", str() as script]:
            return script
        case dict():
            what = f"an object with {', '.join(f'`{_cut(key)}`' for key in list(value)[:5]) or 'no keys'}"
        case _:
            what = f"`{_cut(json.dumps(value))}`"
    raise InvalidArgs(f"The patch came as JSON, {what}; send only its text, or as `input`.")


def _from_fence(text: str) -> str | None:
    """The text in the fence, without the prose around it."""
    opening = _OPENING.search(text)
    if opening is None:
        return None
    body = text[opening.end() :]
    ends = [end.end() for end in _LAST.finditer(body)]
    closing = _CLOSING.search(body, ends[-1] if ends else 0)
    return body[: closing.start()] if closing else body


def _without_fence_after(text: str) -> str:
    """A fence that was closed but never opened."""
    head, _, last = text.rpartition("\n")
    return head.rstrip() if _CLOSING.fullmatch(last) else text


def _require_header(number: int, header: str) -> None:
    if header == HEADER:
        return
    if _UNIFIED.match(header.removeprefix(HEADER).lstrip()):
        what = "line numbers are not used here; write `@@` alone, or `@@ ` and a line of the file above the place."
        raise syntax_error(number, header, what)
    if not header.startswith(f"{HEADER} "):
        raise syntax_error(number, header, "between `@@` and the line of the file there must be a space.")


def _path(path: str) -> str:
    path = path.strip()
    if len(path) > 2 and path[0] == path[-1] and path[0] in "\"'`" and path[0] not in path[1:-1]:
        path = path[1:-1].strip()
    while path.startswith("./") and path.lstrip("./"):
        path = path[2:].lstrip("/")
    return path


def _is_marker(line: str, marker: str) -> bool:
    return line.strip() in (marker, f"{marker} ***")


def _guess(lines: list[str]) -> str:
    """What the text may be instead."""
    if lines[0].startswith(("--- ", "diff --git ", "Index: ")):
        return " This looks like a unified diff, which is another format."
    if len(lines) == 1 and "\\n" in lines[0]:
        return " Line ends came as the two characters `\\n`; send real line ends."
    if any(_is_marker(line, BEGIN) for line in lines):
        return " Send nothing before it, not even a sentence."
    return ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_LENGTH else text[:MAX_SHOWN_LENGTH] + "…"
