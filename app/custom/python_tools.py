"""Tools of Python files and installed packages. Loading executes them."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from app.core.custom_tools import Found, Loaded, Unloaded
from app.core.tools import Tool

GROUP = "toolcrib.tools"


def load(files: Iterable[Path]) -> Loaded:
    """Every tool of these files and of the installed packages. A broken file is reported and skipped."""
    loaded = Loaded()
    for file in files:
        try:
            tools = list(_tools_in(_execute(file)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the operator's code; reported
            loaded.failed.append(Unloaded(file.name, _reason(error)))
        else:
            loaded.found += [Found(file.name, replace(tool, source="file")) for tool in tools]
            if not tools:
                loaded.failed.append(Unloaded(file.name, "No tool is defined in it."))
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        _load_point(point, loaded)
    return loaded


def _load_point(point: EntryPoint, loaded: Loaded) -> None:
    """An entry point is a tool, or a module with some."""
    label = f"{point.name} ({point.value})"
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        loaded.failed.append(Unloaded(label, _reason(error)))
        return
    tools = list(_tools_in(value)) if isinstance(value, ModuleType) else [tool for tool in [_tool_of(value)] if tool]
    loaded.found += [Found(label, replace(tool, source="package")) for tool in tools]
    if not tools:
        loaded.failed.append(Unloaded(label, "It is no tool, and no module that defines one."))


def _execute(file: Path) -> ModuleType:
    """Execute a file as a module of its own; its classes need it in `sys.modules`."""
    name = f"_toolcrib_file_{sha256(str(file).encode()).hexdigest()[:16]}"
    loader = _FreshLoader(name, str(file))
    spec = spec_from_file_location(name, file, loader=loader)
    assert spec is not None, "there is a loader"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _FreshLoader(SourceFileLoader):
    """Compiles every time: the bytecode cache compares mtimes in seconds and would miss a quick change."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _tools_in(module: ModuleType) -> Iterator[Tool]:
    """The tools defined in a module, in their order, without those it imports."""
    seen: list[Tool] = []
    for value in vars(module).values():
        tool = _tool_of(value)
        if tool is None or any(tool is other for other in seen):
            continue
        if isinstance(value, Tool) or getattr(value, "__module__", None) == module.__name__:
            seen.append(tool)
    yield from seen


def _tool_of(value: Any) -> Tool | None:
    """A tool, or the tool of a decorated function."""
    tool = value if isinstance(value, Tool) else getattr(value, "tool", None)
    return tool if isinstance(tool, Tool) else None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
