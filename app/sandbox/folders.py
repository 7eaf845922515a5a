"""Folders: workspaces the service makes for those who did not bring one, and the operator's folders of code."""

from pathlib import Path

WELCOME = "Hello from your Toolcrib workspace.\nAgents see this folder and nothing outside it.\n"


def make_workspace(path: Path) -> Path:
    """Make a workspace with one file to read, if it is not there yet."""
    if not path.exists():
        path.mkdir(parents=True, mode=0o755)
        (path / "hello.txt").write_text(WELCOME)
    return path


def python_files(folder: Path) -> list[Path]:
    """The Python files of a folder, by name; those that start with an underscore are for the others to use."""
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
