"""Folders of a script: where `cd` may have led when a file is redirected to, without running anything.

A `cd` may fail, stand in a subshell or in a branch that is not taken; so what follows it runs in the new folder or in
the old one, and a path counts from each of them. Only what stands behind `cd x &&` runs nowhere but in `x`.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.text.bash.parse import Redirect, Script, Simple
from app.text.bash.unclear import Unclear
from app.text.bash.words import Kind, Word

CHANGING = frozenset({"cd", "pushd", "popd"})
START = "."
MOST_FOLDERS = 8
NOTHING = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})
HOME = "~"


@dataclass(slots=True)
class Touched:
    """Paths that a script changes to, reads from and writes to: from where it starts, absolute, or beginning `~/`."""

    folders: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)


def touched(script: Script) -> Touched:
    found = Touched()
    _follow(script, [START], found)
    for paths in (found.folders, found.reads, found.writes):
        paths[:] = dict.fromkeys(paths)
    return found


def path_of(word: Word) -> str | None:
    """A word as a path; None when nobody knows it. A tilde that was quoted is a name like others."""
    if word.kind is not Kind.STATIC or not word.text:
        return None
    is_home = word.is_bare and (word.text == HOME or word.text.startswith(f"{HOME}/"))
    return f"./{word.text}" if word.text.startswith(HOME) and not is_home else word.text


def _follow(script: Script, start: list[str], found: Touched) -> list[str]:
    """Goes through a script in its order; answers with where it may end."""
    here, later = list(start), list[tuple[int, list[str]]]()
    items: list[Simple | Redirect] = [*script.commands, *script.redirects]
    for item in sorted(items, key=lambda item: item.at):
        while later and item.at > later[-1][0]:
            here = _either(here, later.pop()[1])
        if isinstance(item, Redirect):
            _redirect(item, here, found)
            continue
        for inner in item.inner:
            here = _either(here, _follow(inner, here, found))
        before, here = here, _changed(item, here, found)
        if here is not before:
            later.append((item.sure_until, before))
    while later:
        here = _either(here, later.pop()[1])
    if len(here) > MOST_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to say where it is", "cd"))
        return here[:MOST_FOLDERS]
    return here


def _either(some: list[str], others: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*some, *others]))


def _redirect(redirect: Redirect, here: Sequence[str], found: Touched) -> None:
    path = path_of(redirect.target)
    if path is None:
        if redirect.is_write:
            found.unclear.append(
                Unclear("only the shell will know the file that is written", f"> {redirect.target.plain}")
            )
        return
    if path in NOTHING or path.startswith("/dev/fd/"):
        return
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        found.unclear.append(Unclear("the shell connects to the network", f"> {redirect.target.plain}"))
        return
    (found.writes if redirect.is_write else found.reads).extend(_from(here, path))


def _changed(command: Simple, here: list[str], found: Touched) -> list[str]:
    """Where a command leads; the same list when it leads nowhere else."""
    if not command.words[0].is_static or command.words[0].text not in CHANGING:
        return here
    rest = [
        word for word in command.words[1:] if not (word.is_static and word.text in {"-L", "-P", "-e", "-@", "-n", "--"})
    ]
    name, target = command.words[0].text, rest[0] if rest else None
    if name == "popd" or (target is None and name == "pushd") or (target is not None and target.text == "-"):
        if len(here) == 1 and here[0] == START:
            found.unclear.append(Unclear("nobody knows which folder was there before", command.plain))
        return _either(here, [START, *found.folders])
    path = HOME if target is None else path_of(target)
    if path is None or path.startswith("+") or (command.is_repeated and ".." in path):
        found.unclear.append(Unclear("only the shell will know the folder it changes to", command.plain))
        return here
    new = _from(here, path)
    found.folders.extend(new)
    if len(new) > MOST_FOLDERS:
        found.unclear.append(Unclear("it changes folders too often to say where it is", command.plain))
        return new[:MOST_FOLDERS]
    return new


def _from(here: Sequence[str], path: str) -> list[str]:
    if path.startswith(("/", HOME)):
        return [path]
    return list(dict.fromkeys(path if folder == START else posixpath.join(folder, path) for folder in here))
