"""Folders of our own: workspaces the service makes for those who did not bring one."""

from pathlib import Path

WELCOME = "Hello from your Toolcrib workspace.\nAgents see this folder and nothing outside it.\n"


def make_workspace(path: Path) -> Path:
    """Make a workspace with one file to read, if it is not there yet."""
    if not path.exists():
        path.mkdir(parents=True, mode=0o755)
        (path / "hello.txt").write_text(WELCOME)
    return path
