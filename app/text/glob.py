"""Globs over the names of files, in the words of ripgrep and git: `*`, `?`, `[a-z]`, `{a,b}`, `**`, `\\` before any.

A pattern without a slash speaks of names at any depth, one with a slash of paths from the searched folder on. A
wildcard never stands for the dot that hides a name: who wants hidden files says so. Matching takes time in proportion
to the name, whatever the pattern.
"""

import re
from dataclasses import dataclass
from itertools import groupby, pairwise

from app.core.errors import InvalidArgs, OutsideWorkspace

MOST_LENGTH = 1000
MOST_ALTERNATIVES = 100
TOKEN = re.compile(r"\\(?P<escaped>.)|\[(?P<negated>[!^]?)(?P<set>\]?[^\]]*)\]|(?P<stars>\*+)|(?P<one>\?)|.", re.DOTALL)
PLAIN = re.compile(r"[\w.+~@#%=-]+")
NOT_HIDDEN = r"(?!\.)"
FOLDERS = rf"(?:{NOT_HIDDEN}[^/]+/)*"
TYPE = "only"


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern, ready to be used. `names`: a path that matches ends in one of these simpler ones; none: in any."""

    pattern: str
    names: tuple[str, ...] = ()
    is_hidden: bool = False
    is_git: bool = False
    expression: re.Pattern[str] | None = None

    def matches(self, path: str) -> bool:
        """Whether a path that ripgrep found is meant; it is relative to the searched folder."""
        return self.expression is None or self.expression.fullmatch(path) is not None

    def arguments(self) -> list[str]:
        """What keeps ripgrep to these files and a few more, of which `matches` tells them.

        A type and no `--glob`, which would bring back what is ignored. What is to be left out can be said by it.
        """
        if self.expression is None:
            return [f"--glob={self.pattern}"]
        found = [f"--type-add={TYPE}:{name}" for name in self.names]
        found += [f"--type={TYPE}"] if found else []
        found += ["--hidden"] if self.is_hidden else []
        return [*found, "--glob=!.git"] if self.is_hidden and not self.is_git else found


def compile(pattern: str) -> Glob:
    """The files of one pattern, or with `!` before it all others.

    Raises `InvalidArgs` for what is no glob, `OutsideWorkspace` for one that leads upwards.
    """
    if len(pattern) > MOST_LENGTH:
        raise InvalidArgs(f"The glob is longer than {MOST_LENGTH} characters; use a shorter one.")
    paths = [_parts(path) for path in _expanded(pattern.removeprefix("!"))]
    parts = {part.lstrip("\\") for path in paths for part in path}
    names = dict.fromkeys(_simple(path[-1]) for path in paths)
    try:
        expression = re.compile("|".join(_expression(path) for path in paths), re.DOTALL)
    except re.error as error:
        raise InvalidArgs(f"`{pattern}` is no glob: {error.msg}.") from None
    if pattern.startswith("!"):
        return Glob(pattern)
    return Glob(
        pattern,
        names=tuple(names) if all(name.strip("*") for name in names) else (),
        is_hidden=any(part.startswith(".") for part in parts),
        is_git=".git" in parts,
        expression=expression,
    )


def _expanded(pattern: str) -> list[str]:
    """The patterns without braces that one with braces stands for."""
    done, rest = list[str](), [pattern]
    while rest:
        if len(done) + len(rest) > MOST_ALTERNATIVES:
            raise InvalidArgs(f"`{pattern}` stands for more than {MOST_ALTERNATIVES} globs; use fewer braces.")
        here = rest.pop(0)
        group = _group(here)
        if group:
            head, tail = here[: group[0]], here[group[-1] + 1 :]
            rest[:0] = [head + here[start + 1 : end] + tail for start, end in pairwise(group)]
        else:
            done.append(here)
    return done


def _group(pattern: str) -> list[int]:
    """Where the first group of alternatives begins, is divided and ends; empty when there is none."""
    places, depth = list[int](), 0
    for token in TOKEN.finditer(pattern):
        if token[0] == "[":
            raise InvalidArgs(f"`{pattern}` is no glob: it has a `[` without its `]`.")
        if token[0] == "{":
            depth += 1
        if token[0] in "{,}" and depth == 1:
            places.append(token.start())
        if token[0] == "}":
            depth -= 1
            if depth <= 0:
                break
    if depth:
        raise InvalidArgs(f"`{pattern}` is no glob: it has a `{{` or `}}` without the other.")
    return places


def _parts(path: str) -> list[str]:
    """The parts of a path, with `**` where it may begin anywhere, and where it means all that is in a folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise InvalidArgs("The glob is empty; `*` is every file.")
    if ".." in parts:
        raise OutsideWorkspace(f"`{path}` has `..` in it; a glob speaks of what is below the folder.")
    if path.endswith("/"):
        parts.append("**")
    return parts if "/" in path else ["**", *parts]


def _simple(part: str) -> str:
    """A glob that matches what a part matches and maybe more, in characters that mean the same to everybody."""
    tokens = (token[0] for token in TOKEN.finditer(part))
    return re.sub(r"\*+", "*", "".join(token if PLAIN.fullmatch(token) else "*" for token in tokens))


def _expression(parts: list[str]) -> str:
    """What stands between two `**` is looked for from the left and, once found, never again: all that follows can
    only be further to the right."""
    runs = [list(run) for is_any, run in groupby(parts, lambda part: part == "**") if not is_any]
    between = ["/".join(_part(part) for part in run) for run in runs]
    first = "" if parts[0] == "**" else between.pop(0)
    last = "" if parts[-1] == "**" or not between else between.pop()
    if parts.count("**") == 0:
        return first
    found = f"{first}/" if first else ""
    found += "".join(f"(?>{FOLDERS[:-1]}*?{run}/)" for run in between)
    return found + FOLDERS + (last or f"{NOT_HIDDEN}[^/]+")


def _part(part: str) -> str:
    """One name. Between two stars it is the same as between two `**`."""
    tokens = list(TOKEN.finditer(part))
    pieces = [""]
    for token in tokens:
        if token["stars"]:
            pieces.append("")
        else:
            pieces[-1] += _character(token)
    hidden = "" if PLAIN.match(tokens[0][0]) or tokens[0]["escaped"] else NOT_HIDDEN
    first, *rest = pieces
    if not rest:
        return hidden + first
    return hidden + first + "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1]) + "[^/]*" + rest[-1]


def _character(token: re.Match[str]) -> str:
    if token["one"]:
        return "[^/]"
    if token["set"] is None:
        return re.escape(token["escaped"] or token[0])
    given = re.sub(r"([^\w-])", r"\\\1", token["set"])
    inside = re.sub(r"(?<![\w])-|-(?![\w])", r"\\-", given)
    return f"[^/{inside}]" if token["negated"] else f"(?!/)[{inside}]"
