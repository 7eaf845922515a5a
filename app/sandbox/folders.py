"""Folders of our own: workspaces the service makes for those who did not bring one, and files the operator names."""

import logging
from pathlib import Path

from app.sandbox.ownership import Owner, give

log = logging.getLogger(__name__)

HOME_FOLDER = "workspace"
WELCOME = "Hello from your Toolcrib workspace.\nAgents see this folder and nothing outside it.\n"


def make_workspace(path: Path, owner: Owner | None = None) -> Path:
    """Make a workspace with one file to read, if it is not there yet. It is an owner's, if there is one."""
    if not path.exists():
        path.mkdir(parents=True, mode=0o755)
        (path / "hello.txt").write_text(WELCOME)
    give(path, owner)
    return path


def python_files(folder: Path) -> list[Path]:
    """The Python files of a folder that are meant to be loaded, by name. A link may not lead out of the folder."""
    files = []
    for path in sorted(folder.iterdir()):
        if path.suffix != ".py" or path.name.startswith(("_", ".")) or not path.is_file():
            continue
        if path.resolve().parent.is_relative_to(folder.resolve()):
            files.append(path)
        else:
            log.warning("%s leads out of its folder and is not loaded", path)
    return files
