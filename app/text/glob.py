"""Globs in the syntax of ripgrep and git: `*`, `?`, `[a-z]`, `{a,b}`, `**`, `\\` before any character.

A pattern without a slash matches names at any depth, one with a slash matches paths from the searched folder. A
wildcard never matches a leading dot: hidden files must be named. Matching time is linear in the length of the name.
"""

import re
from dataclasses import dataclass
from itertools import groupby, pairwise

from app.core.errors import InvalidArgs, OutsideWorkspace

MAX_LENGTH = 1000
MAX_ALTERNATIVES = 100
TOKEN = re.compile(r"\\(?P<escaped>.)|\[(?P<negated>[!^]?)(?P<set>\]?[^\]]*)\]|(?P<stars>\*+)|(?P<one>\?)|.", re.DOTALL)
LITERAL = re.compile(r"[\w.+~@#%=-]+")
NOT_HIDDEN = r"(?!\.)"
FOLDERS = rf"(?:{NOT_HIDDEN}[^/]+/)*"
TYPE = "only"


@dataclass(frozen=True, slots=True)
class Glob:
    """A compiled pattern. `names`: simpler globs, one of which matches the last part of every path; empty: any."""

    pattern: str
    names: tuple[str, ...] = ()
    is_hidden: bool = False
    is_git: bool = False
    expression: re.Pattern[str] | None = None

    def matches(self, path: str) -> bool:
        """Whether a path matches; it is relative to the searched folder."""
        return self.expression is None or self.expression.fullmatch(path) is not None

    def arguments(self) -> list[str]:
        """Options with which ripgrep finds these files and some more, to be filtered by `matches`.

        They use a file type, because `--glob` would include ignored files. Only a negated pattern is passed as a glob.
        """
        if self.expression is None:
            return [f"--glob={self.pattern}"]
        found = [f"--type-add={TYPE}:{name}" for name in self.names]
        found += [f"--type={TYPE}"] if found else []
        found += ["--hidden"] if self.is_hidden else []
        return [*found, "--glob=!.git"] if self.is_hidden and not self.is_git else found


def compile_glob(pattern: str) -> Glob:
    """One pattern, negated by a leading `!`. Raises `InvalidArgs`, or `OutsideWorkspace` for a pattern with `..`."""
    if len(pattern) > MAX_LENGTH:
        raise InvalidArgs(f"The glob is longer than {MAX_LENGTH} characters; use a shorter one.")
    paths = [_parts(path) for path in _expand_braces(pattern.removeprefix("!"))]
    parts = {part.lstrip("\\") for path in paths for part in path}
    names = dict.fromkeys(_simplify(path[-1]) for path in paths)
    try:
        expression = re.compile("|".join(_path_regex(path) for path in paths), re.DOTALL)
    except re.error as error:
        raise InvalidArgs(f"`{pattern}` is not a valid glob: {error.msg}.") from None
    if pattern.startswith("!"):
        return Glob(pattern)
    return Glob(
        pattern,
        names=tuple(names) if all(name.strip("*") for name in names) else (),
        is_hidden=any(part.startswith(".") for part in parts),
        is_git=".git" in parts,
        expression=expression,
    )


def _expand_braces(pattern: str) -> list[str]:
    """The patterns without braces that a pattern with braces expands to."""
    done, rest = list[str](), [pattern]
    while rest:
        if len(done) + len(rest) > MAX_ALTERNATIVES:
            raise InvalidArgs(f"`{pattern}` expands to more than {MAX_ALTERNATIVES} globs; use fewer braces.")
        here = rest.pop(0)
        group = _brace_group(here)
        if group:
            head, tail = here[: group[0]], here[group[-1] + 1 :]
            rest[:0] = [head + here[start + 1 : end] + tail for start, end in pairwise(group)]
        else:
            done.append(here)
    return done


def _brace_group(pattern: str) -> list[int]:
    """Offsets of the first brace group: its `{`, its commas and its `}`; empty if there is none."""
    offsets, depth = list[int](), 0
    for token in TOKEN.finditer(pattern):
        if token[0] == "[":
            raise InvalidArgs(f"`{pattern}` is not a valid glob: a `[` is not closed.")
        if token[0] == "{":
            depth += 1
        if token[0] in "{,}" and depth == 1:
            offsets.append(token.start())
        if token[0] == "}":
            depth -= 1
            if depth <= 0:
                break
    if depth:
        raise InvalidArgs(f"`{pattern}` is not a valid glob: its braces do not match.")
    return offsets


def _parts(path: str) -> list[str]:
    """The parts of a path, with `**` in front if it matches at any depth, and behind if it means a whole folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise InvalidArgs("The glob is empty; `*` is every file.")
    if ".." in parts:
        raise OutsideWorkspace(f"`{path}` has `..` in it; a glob matches only below the folder.")
    if path.endswith("/"):
        parts.append("**")
    return parts if "/" in path else ["**", *parts]


def _simplify(part: str) -> str:
    """A glob that matches what a part matches and maybe more, without special syntax but `*`."""
    tokens = (token[0] for token in TOKEN.finditer(part))
    return re.sub(r"\*+", "*", "".join(token if LITERAL.fullmatch(token) else "*" for token in tokens))


def _path_regex(parts: list[str]) -> str:
    """Atomic groups: the parts between two `**` are matched at the leftmost place and never again, because the rest
    can only match further to the right."""
    runs = [list(run) for is_any, run in groupby(parts, lambda part: part == "**") if not is_any]
    between = ["/".join(_part_regex(part) for part in run) for run in runs]
    first = "" if parts[0] == "**" else between.pop(0)
    last = "" if parts[-1] == "**" or not between else between.pop()
    if parts.count("**") == 0:
        return first
    found = f"{first}/" if first else ""
    found += "".join(f"(?>{FOLDERS[:-1]}*?{run}/)" for run in between)
    return found + FOLDERS + (last or f"{NOT_HIDDEN}[^/]+")


def _part_regex(part: str) -> str:
    """One part of a path. Between two stars the same holds as between two `**`."""
    tokens = list(TOKEN.finditer(part))
    pieces = [""]
    for token in tokens:
        if token["stars"]:
            pieces.append("")
        else:
            pieces[-1] += _token_regex(token)
    hidden = "" if LITERAL.match(tokens[0][0]) or tokens[0]["escaped"] else NOT_HIDDEN
    first, *rest = pieces
    if not rest:
        return hidden + first
    return hidden + first + "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1]) + "[^/]*" + rest[-1]


def _token_regex(token: re.Match[str]) -> str:
    if token["one"]:
        return "[^/]"
    if token["set"] is None:
        return re.escape(token["escaped"] or token[0])
    escaped = re.sub(r"([^\w-])", r"\\\1", token["set"])
    inside = re.sub(r"(?<![\w])-|-(?![\w])", r"\\-", escaped)
    return f"[^/{inside}]" if token["negated"] else f"(?!/)[{inside}]"
