"""Roots: the folders a server is told to work in, as it wants to hear of them."""

from collections.abc import Iterable
from urllib.parse import quote

from app.core.jsons import Raw


def listed(folders: Iterable[str]) -> list[Raw]:
    return [root(str(folder)) for folder in folders]


def root(folder: str) -> Raw:
    """One folder; what is an address already stays one."""
    uri = folder if "://" in folder else f"file://{quote(folder)}"
    return {"uri": uri, "name": folder.rstrip("/").rpartition("/")[2] or folder}
