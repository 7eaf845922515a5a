"""The rules of the layers that a machine can check. Each check is shown once to fail on a violation."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from app.tools import BUILTINS

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "store": {"core"},
    "sandbox": {"core"},
    "net": {"core"},
    "text": {"core"},
    "tools": {"core", "text"},
    "custom": {"core"},
    "dispatch": {"core", "store"},
    "mcp": {"core", "store", "dispatch"},
    "providers": {"core"},
    "runs": {"core", "store", "dispatch", "providers"},
    "api": {"core", "store", "dispatch", "mcp", "providers", "runs"},
}
UNRESTRICTED = {"cli"}
"""Packages that, like the modules at the top, may import everything."""

TOP_MODULES = {
    *("main", "service", "server", "config", "logs", "sdk", "__main__", "__init__"),
    *("plugins", "mcp_config", "mcp_setup", "sandbox_setup"),
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
    "PIL": {"text"},
    "tree_sitter": {"text"},
    "tree_sitter_bash": {"text"},
}
TYPES_ONLY = {("sqlalchemy.ext.asyncio", "AsyncEngine")}
"""A handle that packages pass down to `store` without running SQL on it."""

OPENERS = {"open", "mkdir", "unlink", "rename", "replace", "rmdir", "symlink", "listdir", "scandir", "walk", "remove"}
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "touch"}
MAY_TOUCH_FILES = {"sandbox", "store"}
READS_OPERATOR_FILES = {"net/tls.py"}
"""Modules that read files the operator names in the settings, never paths of a workspace."""

CORE_PACKAGES = ["fastapi", "uvicorn", "pydantic", "sqlalchemy", "aiosqlite", "httpx", "mcp", "pytest"]

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60


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


def imported_parts(tree: ast.AST) -> set[str]:
    """The packages and top modules of `app` that a module imports."""
    found = set()
    for item in imports(tree):
        parts = item.module.split(".")
        if parts[0] == "app":
            found.add(parts[1] if len(parts) > 1 else item.name or "")
    return found


def upward_imports(package: str, tree: ast.AST) -> set[str]:
    """Imports of a package that do not go down the layers."""
    return imported_parts(tree) - MAY_IMPORT[package] - {package} - {"__version__"}


def misplaced_imports(package: str, tree: ast.AST) -> set[str]:
    """Third-party packages imported outside the packages they belong to."""
    return {
        item.module
        for item in imports(tree)
        if (home := ONLY_IN.get(item.module.split(".")[0])) is not None
        and package not in home
        and (item.module, item.name) not in TYPES_ONLY
    }


def file_accesses(tree: ast.AST) -> set[str]:
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


def too_long(name: str, source: str, tree: ast.Module) -> dict[str, int]:
    """Modules and functions over their limits, with their lengths."""
    lines = len(source.splitlines())
    found = {name: lines} if lines > MAX_MODULE_LINES else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found[f"{name}:{node.name}"] = length
    return found


def package_of(module: Path) -> str | None:
    """The package of a module that the layer rules apply to; None for the unrestricted ones."""
    parts = module.relative_to(APP).parts
    return parts[0] if len(parts) > 1 and parts[0] not in UNRESTRICTED else None


MODULES = sorted(path for path in APP.rglob("*.py") if "_migrations" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def layered_modules() -> list[tuple[str, str, ast.AST]]:
    """Package, name and syntax tree of each module in a layer."""
    return [
        (package, str(module.relative_to(APP)), parsed(module))
        for module in MODULES
        if (package := package_of(module)) is not None
    ]


def test_imports_only_go_down() -> None:
    assert {name: found for package, name, tree in layered_modules() if (found := upward_imports(package, tree))} == {}


def test_the_import_check_fails_on_a_violation() -> None:
    assert upward_imports("core", ast.parse("from app.store import calls")) == {"store"}
    assert upward_imports("tools", ast.parse("import app.sandbox.files.workspace")) == {"sandbox"}
    assert upward_imports("store", ast.parse("from app import config")) == {"config"}


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules each module imports, also inside functions and for types only."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        named = {
            full if item.name and (full := f"{item.module}.{item.name}") in trees else item.module
            for item in imports(tree)
        }
        graph[name] = (named & trees.keys()) - {name}
    return graph


def import_cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules that import each other: components of more than one module (Tarjan)."""
    found: set[frozenset[str]] = set()
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in graph[module]:
            if imported not in index:
                visit(imported)
            if imported in stack:
                low[module] = min(low[module], low[imported])
        if low[module] == index[module]:
            start = stack.index(module)
            if len(component := stack[start:]) > 1:
                found.add(frozenset(component))
            del stack[start:]

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_no_modules_import_each_other() -> None:
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): parsed(path)
        for path in MODULES
    }

    assert import_cycles(import_graph(trees)) == set()


def test_the_cycle_check_fails_on_a_violation() -> None:
    sources = {
        "app.a": "from app.b import x",
        "app.b": "def f():\n    from app import c",
        "app.c": "if TYPE_CHECKING:\n    import app.a",
        "app.d": "from app import a",
    }

    trees = {name: ast.parse(source) for name, source in sources.items()}
    assert import_cycles(import_graph(trees)) == {frozenset({"app.a", "app.b", "app.c"})}


def test_each_third_party_package_is_used_only_where_it_belongs() -> None:
    found = {name: bad for package, name, tree in layered_modules() if (bad := misplaced_imports(package, tree))}

    assert found == {}


def test_the_package_check_fails_on_a_violation() -> None:
    assert misplaced_imports("dispatch", ast.parse("from sqlalchemy import select")) == {"sqlalchemy"}
    assert misplaced_imports("tools", ast.parse("import subprocess")) == {"subprocess"}
    assert misplaced_imports("api", ast.parse("import httpx")) == {"httpx"}


def test_only_the_sandbox_and_the_store_open_files() -> None:
    found = {
        name: bad
        for package, name, tree in layered_modules()
        if package not in MAY_TOUCH_FILES and name not in READS_OPERATOR_FILES and (bad := file_accesses(tree))
    }

    assert found == {}


def test_the_file_check_fails_on_a_violation() -> None:
    assert file_accesses(ast.parse("open('x'); os.unlink('y'); Path('z').read_text()")) == {
        "open",
        "unlink",
        "read_text",
    }


def test_every_package_and_every_top_module_is_known() -> None:
    packages = {path.parent.name for path in APP.glob("*/__init__.py")}
    top = {path.stem for path in APP.glob("*.py")}

    assert packages == set(MAY_IMPORT) | UNRESTRICTED
    assert top <= TOP_MODULES


def test_every_package_says_what_it_may_import() -> None:
    for package, below in MAY_IMPORT.items():
        text = ast.get_docstring(ast.parse((APP / package / "__init__.py").read_text())) or ""

        assert text.startswith("Layer "), package
        assert all(name in text for name in below), package


def test_modules_and_functions_stay_within_their_limits() -> None:
    found: dict[str, int] = {}
    for module in MODULES:
        found |= too_long(str(module.relative_to(APP)), module.read_text(), parsed(module))

    assert found == {}


def test_the_size_check_fails_on_a_violation() -> None:
    long = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES

    assert too_long("m.py", long, ast.parse(long)) == {"m.py:f": MAX_FUNCTION_LINES + 1}
    lines = "x = 1\n" * (MAX_MODULE_LINES + 1)
    assert too_long("m.py", lines, ast.parse(lines)) == {"m.py": MAX_MODULE_LINES + 1}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """They are imported by their names alone, so the second one could not be."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]

    assert sorted(names) == sorted(set(names))


def test_every_tool_file_is_listed() -> None:
    files = {path.stem for path in (APP / "tools").rglob("[!_]*.py")}

    assert files == {tool.name for tool in BUILTINS}


def imported_packages() -> set[str]:
    sources = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    return {
        name for path in sources for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
    }


def test_every_core_package_is_really_used() -> None:
    assert set(CORE_PACKAGES) <= imported_packages()


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
