"""Ways: where a path leads, and over which symlinks."""

import errno
import os

MOST_LINKS = 40

Links = list[tuple[str, str]]
"""Where each symlink stands, and what it says."""


def follow(path: str) -> tuple[str, Links]:
    """A path as it is without symlinks, and those that were met. What is not there is taken as it is named.

    Raises `OSError` for a loop.
    """
    here, left, links = "/", _parts(path), Links()
    while left:
        part = left.pop(0)
        step = os.path.dirname(here) if part == ".." else os.path.join(here, part)
        try:
            target = os.readlink(step)
        except OSError:
            here = step
            continue
        if len(links) == MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        links.append((step, target))
        here = "/" if target.startswith("/") else here
        left = _parts(target) + left
    return here, links


def real(path: str) -> str:
    """A path without symlinks."""
    return follow(path)[0]


def is_below(path: str, folder: str) -> bool:
    """Whether a path leads into a folder; a folder is not below itself."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
