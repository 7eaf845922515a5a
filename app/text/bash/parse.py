"""Shell commands, read: each simple command of a script, wherever it stands, and each file it is redirected to.

    in the script   lists, pipes, loops, conditions, functions, subshells, substitutions, here-documents
    in a command    what `env`, `sudo`, `xargs`, `find -exec`, `bash -c`, `eval`, … run (`command_wrappers`)

What cannot be read is `Unclear`: the whole script where its syntax is not certain, a part of it where only the running
shell will know (`$CMD x`, `eval "$X"`). Nothing that could run is left out in silence.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from app.text.bash.reader import Reader
from app.text.bash.script import Assignment, Found, Redirect, Script, Simple
from app.text.bash.split import elide
from app.text.bash.syntax_tree import encode
from app.text.bash.unclear import Doubtful, Unclear
from app.text.bash.words import Word, static
from app.text.bash.wrappers import Inner, unwrap

__all__ = ["Assignment", "Redirect", "Script", "Simple", "Unclear", "of_argv", "parse"]

MOST_COMMANDS = 2_000
MOST_WRAPPED = 8
REMEMBERED = 8_192


def parse(script: str) -> Script | Unclear:
    """What a script runs."""
    return _remembered(script) if len(script) <= REMEMBERED else _parse(script, 0)


@lru_cache(maxsize=64)
def _remembered(script: str) -> Script | Unclear:
    """Whoever is asked for a script's needs is soon asked whether it is safe."""
    return _parse(script, 0)


def of_argv(argv: Sequence[str]) -> Script | Unclear:
    """What an argv runs: one command, whose words are as they are."""
    if not argv:
        return Unclear("there is no command", "")
    words = tuple(static(text) for text in argv)
    if any("\0" in word.text for word in words):
        return Unclear("an argument holds a NUL", " ".join(argv))
    return _of_words(words, 0)


def _parse(script: str, depth: int) -> Script | Unclear:
    if depth > MOST_WRAPPED:
        return Unclear("commands are wrapped in each other too deeply to be read", script)
    try:
        return _read(encode(script), depth)
    except Doubtful as doubt:
        return Unclear(doubt.reason, script)


def _read(source: bytes, depth: int) -> Script:
    """What seemed to be a long here-document may turn out to be none; then it is read as it stands."""
    elided = elide(source)
    take = partial(_take, depth=depth)
    try:
        return Reader(elided, take).read()
    except Doubtful:
        if not elided.texts:
            raise
    return Reader(elide(source, keeps_documents=True), take).read()


def _of_words(words: tuple[Word, ...], depth: int, is_open: bool = False) -> Script:
    """A script of one command."""
    if depth > MOST_WRAPPED:
        text = " ".join(word.plain for word in words)
        return Script(unclear=(Unclear("commands are wrapped in each other too deeply to be read", text),))
    found = Found()
    _take(found, Simple(words, is_open=is_open), depth)
    return found.script()


def _take(found: Found, command: Simple, depth: int) -> None:
    """Adds a command, with what is inside it."""
    if not command.name.is_static or not command.name.text:
        found.unclear.append(Unclear("only the shell will know which command this is", command.plain))
    inner = list[Script]()
    for part in unwrap(command.words, command.stdin):
        entered = _enter(part, command, depth + 1)
        if isinstance(entered, Unclear):
            found.unclear.append(entered)
        else:
            inner.append(entered)
    found.commands.append(replace(command, inner=tuple(inner)))
    if len(found.commands) > MOST_COMMANDS:
        raise Doubtful("the script has too many commands to be read")


def _enter(part: Inner, command: Simple, depth: int) -> Script | Unclear:
    match part:
        case Unclear():
            return part
        case str():
            found = _parse(part, depth)
            return Unclear(found.reason, command.plain) if isinstance(found, Unclear) else found
        case _:
            return _of_words(part.words, depth, part.is_open or command.is_open)
