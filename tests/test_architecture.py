"""The house rules that a machine can check. Each check is shown once to bite."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from app.tools import BUILTINS

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "store": {"core"},
    "sandbox": {"core"},
    "net": {"core"},
    "texts": {"core"},
    "tools": {"core", "texts"},
    "custom": {"core"},
    "dispatch": {"core", "store"},
    "mcp": {"core", "store", "dispatch"},
    "providers": {"core"},
    "api": {"core", "store", "dispatch", "mcp", "providers"},
    "console": set(),
}
TOP_MODULES = {
    *("main", "house", "server", "config", "logs", "sdk", "__main__", "__init__"),
    *("cli", "admin", "terminal", "asks", "keys", "secrets", "records", "backups", "exports", "doctor"),
    *("extensions", "shells", "walling", "neighbourhood", "mcp_config", "mcp_servers"),
}

ONLY_IN: dict[str, set[str]] = {
    "sqlalchemy": {"store"},
    "aiosqlite": {"store"},
    "sqlite3": {"store"},
    "alembic": {"store"},
    "subprocess": {"sandbox"},
    "pty": {"sandbox"},
    "multiprocessing": {"sandbox"},
    "httpx": {"net"},
    "httpcore": {"net"},
    "aiohttp": {"mcp"},
    "httpx2": {"mcp"},
    "mcp": {"mcp"},
    "yaml": {"net", "custom"},
    "jsonschema": {"custom", "mcp"},
    "socket": {"sandbox", "net"},
    "fastapi": {"api"},
    "starlette": {"api", "mcp"},
    "uvicorn": {"api"},
    "prometheus_client": {"api"},
    "cryptography": {"store"},
    "opentelemetry": {"net"},
    "PIL": {"texts"},
    "tree_sitter": {"texts"},
    "tree_sitter_bash": {"texts"},
}
TYPES_ONLY = {("sqlalchemy.ext.asyncio", "AsyncEngine")}
"""A handle that rooms pass down to `store` without saying SQL with it."""

OPENERS = {"open", "mkdir", "unlink", "rename", "replace", "rmdir", "symlink", "listdir", "scandir", "walk", "remove"}
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "touch"}
MAY_TOUCH_FILES = {"sandbox", "store"}

CORE_PACKAGES = ["fastapi", "uvicorn", "pydantic", "sqlalchemy", "aiosqlite", "httpx", "mcp", "pytest"]

MAX_MODULE = 400
MAX_FUNCTION = 50
LONGER: dict[str, int] = {}
"""What may be longer than the limits, with its length. Entries may only shrink or go."""


@dataclass(frozen=True)
class Imported:
    module: str
    name: str | None


def imports(tree: ast.AST) -> Iterator[Imported]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Imported(alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (Imported(node.module, alias.name) for alias in node.names)


def rooms_of(tree: ast.AST) -> set[str]:
    """The rooms and top modules of the house that a module imports."""
    found = set()
    for item in imports(tree):
        parts = item.module.split(".")
        if parts[0] == "app":
            found.add(parts[1] if len(parts) > 1 else item.name or "")
    return found


def sideways(room: str, tree: ast.AST) -> set[str]:
    """Imports of a room that do not go down."""
    return rooms_of(tree) - MAY_IMPORT[room] - {room} - {"__version__"}


def forbidden(room: str, tree: ast.AST) -> set[str]:
    """Packages imported outside the rooms they belong to."""
    return {
        item.module
        for item in imports(tree)
        if (home := ONLY_IN.get(item.module.split(".")[0])) is not None
        and room not in home
        and (item.module, item.name) not in TYPES_ONLY
    }


def file_touches(tree: ast.AST) -> set[str]:
    """Calls that open or change files."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open"):
                found.add("open")
            case ast.Attribute(value=ast.Name(id="os" | "shutil" | "io"), attr=name) if name in OPENERS:
                found.add(name)
            case ast.Attribute(attr=name) if name in PATH_METHODS:
                found.add(name)
    return found


def too_long(name: str, source: str) -> dict[str, int]:
    """Modules and functions over their limits, with their lengths."""
    found = {name: len(source.splitlines())} if len(source.splitlines()) > MAX_MODULE else {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION:
                found[f"{name}:{node.name}"] = length
    return found


def room_of(module: Path) -> str | None:
    """The room a module stands in; None for the modules of the top floor."""
    parts = module.relative_to(APP).parts
    return parts[0] if len(parts) > 1 else None


MODULES = sorted(path for path in APP.rglob("*.py") if "_migrations" not in path.parts)
IN_ROOMS = [module for module in MODULES if room_of(module)]


def name_of(module: Path) -> str:
    return str(module.relative_to(APP))


@pytest.mark.parametrize("module", IN_ROOMS, ids=name_of)
def test_imports_only_go_down(module: Path) -> None:
    assert sideways(room_of(module) or "", ast.parse(module.read_text())) == set()


def test_the_import_check_bites() -> None:
    assert sideways("core", ast.parse("from app.store import calls")) == {"store"}
    assert sideways("tools", ast.parse("import app.sandbox.workspace")) == {"sandbox"}
    assert sideways("store", ast.parse("from app import config")) == {"config"}


@pytest.mark.parametrize("module", IN_ROOMS, ids=name_of)
def test_each_package_stays_in_its_room(module: Path) -> None:
    assert forbidden(room_of(module) or "", ast.parse(module.read_text())) == set()


def test_the_package_check_bites() -> None:
    assert forbidden("dispatch", ast.parse("from sqlalchemy import select")) == {"sqlalchemy"}
    assert forbidden("tools", ast.parse("import subprocess")) == {"subprocess"}
    assert forbidden("api", ast.parse("import httpx")) == {"httpx"}


@pytest.mark.parametrize("module", IN_ROOMS, ids=name_of)
def test_only_the_sandbox_opens_workspace_files(module: Path) -> None:
    if room_of(module) not in MAY_TOUCH_FILES:
        assert file_touches(ast.parse(module.read_text())) == set()


def test_the_file_check_bites() -> None:
    assert file_touches(ast.parse("open('x'); os.unlink('y'); Path('z').read_text()")) == {
        "open",
        "unlink",
        "read_text",
    }


def test_every_room_and_every_module_of_the_top_floor_is_known() -> None:
    rooms = {path.parent.name for path in APP.glob("*/__init__.py")}
    top = {path.stem for path in APP.glob("*.py")}

    assert rooms == set(MAY_IMPORT)
    assert top <= TOP_MODULES


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_every_room_has_a_sign_that_says_what_it_may_import(room: str) -> None:
    sign = ast.get_docstring(ast.parse((APP / room / "__init__.py").read_text())) or ""

    assert sign.startswith("Floor ")
    for below in MAY_IMPORT[room]:
        assert below in sign


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_modules_and_functions_stay_small(module: Path) -> None:
    found = too_long(name_of(module), module.read_text())

    assert {name: size for name, size in found.items() if size > LONGER.get(name, 0)} == {}


def test_the_list_of_exceptions_only_shrinks() -> None:
    found: dict[str, int] = {}
    for module in MODULES:
        found |= too_long(name_of(module), module.read_text())

    assert found == LONGER


def test_the_size_check_bites() -> None:
    long = "def f():\n" + "    x = 1\n" * MAX_FUNCTION

    assert too_long("m.py", long) == {"m.py:f": MAX_FUNCTION + 1}
    assert too_long("m.py", "x = 1\n" * (MAX_MODULE + 1)) == {"m.py": MAX_MODULE + 1}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """They are imported by their names alone, so the second one could not be."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]

    assert sorted(names) == sorted(set(names))


def test_every_tool_file_is_listed() -> None:
    files = {path.stem for path in (APP / "tools").glob("[!_]*.py")}

    assert files == {tool.name for tool in BUILTINS}


@cache
def imported_packages() -> set[str]:
    sources = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    return {item.module.split(".")[0] for path in sources for item in imports(ast.parse(path.read_text()))}


@pytest.mark.parametrize("package", CORE_PACKAGES)
def test_every_core_package_is_really_used(package: str) -> None:
    assert package in imported_packages()


def test_the_lock_files_hold_names_versions_and_hashes_only() -> None:
    paths = sorted(ROOT.glob("requirements*.lock"))
    assert [path.stem for path in paths] == ["requirements-image", "requirements-test", "requirements"]
    for path in [*paths, *(ROOT / "tests/conformance/python").glob("*.lock")]:
        lines = [line for line in path.read_text().splitlines() if line and not line.lstrip().startswith("#")]
        assert lines
        assert all("==" in line or line.startswith("    --hash=sha256:") for line in lines)
        assert not any("://" in line for line in lines)


def test_the_lock_file_of_npm_names_no_address() -> None:
    lock = (ROOT / "tests/conformance/npm/package-lock.json").read_text()

    assert '"integrity": "sha512-' in lock
    assert "://" not in lock
    assert '"resolved"' not in lock


def test_what_moves_fast_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    for package in ("fastapi", "mcp"):
        [wanted] = [line for line in project["dependencies"] if line.startswith(package)]
        assert ",<" in wanted
