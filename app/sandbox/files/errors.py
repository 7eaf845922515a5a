"""Errors of the file system as `CallError`s, which show paths only as the caller wrote them."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from app.core.errors import CallError, FileFailed, OutsideWorkspace
from app.core.util.path_text import printable
from app.sandbox.files.openat2 import StepRefused

MAX_SHOWN_CHARS = 300

READING = {
    errno.ENOENT: "{path} does not exist.",
    errno.ENOTDIR: "{path} is not a directory, or a part of it is a file.",
    errno.EISDIR: "{path} is a directory, not a file.",
    errno.EACCES: "{path} may not be read by this service.",
    errno.ELOOP: "{path} goes through too many symlinks, or through one that is never followed.",
    errno.ENAMETOOLONG: "{path} is too long for a path; use a shorter one.",
    errno.ESTALE: "{path} changed after it was checked; try again.",
    errno.EINVAL: "{path} is a pipe, a device or a socket and cannot be read as a file.",
}
WRITING = READING | {
    errno.EACCES: "{path} cannot be changed: this service may not write in the folder it is in.",
    errno.EPERM: "{path} cannot be changed: the system does not let this service write there.",
    errno.EROFS: "{path} cannot be changed: it is on a file system that is read-only.",
    errno.ELOOP: "{path} is a symlink that leads to nothing, or goes through one; name the file by its own path.",
    errno.EEXIST: "{path} exists already; read it first.",
    errno.ESTALE: "{path} was changed, moved or removed after it was read; read it again.",
    errno.EINVAL: "{path} is a pipe, a device or a socket and cannot be written as a file.",
    errno.EBUSY: "{path} cannot be replaced: it is mounted where it is.",
    errno.ENOSPC: "{path} cannot be written: the disk is full.",
    errno.EDQUOT: "{path} cannot be written: the disk quota of this service is used up.",
}


def read_error(number: int, path: str, sentence: str | None = None) -> FileFailed:
    """A failed read; `sentence` replaces the usual one."""
    sentence = sentence or READING.get(number)
    return FileFailed(number, shown(path), sentence and sentence.format(path=shown(path)))


def write_error(number: int, path: str, sentence: str | None = None) -> FileFailed:
    """A failed write."""
    return read_error(number, path, sentence or WRITING.get(number))


def outside_error(path: str) -> OutsideWorkspace:
    return OutsideWorkspace(
        f"{shown(path)} leads out of the workspace by `..` or a symlink (absolute symlinks count as outside);"
        " use a path that stays inside."
    )


def open_error(error: OSError, path: str) -> CallError:
    """An error of opening a path."""
    if isinstance(error, StepRefused):
        return OutsideWorkspace(
            f"{shown(path)} goes through `{shown(error.filename)}`: symlinks and `..` are not followed"
            " on this system; name the file by its own path."
        )
    if error.errno == errno.EXDEV:
        return outside_error(path)
    if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device without a driver
        return read_error(errno.EINVAL, path)
    return read_error(error.errno or errno.EIO, path)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Errors inside are reported as failed writes of this path."""
    try:
        yield
    except StepRefused as error:
        raise open_error(error, path) from None
    except OSError as error:
        raise write_error(error.errno or errno.EIO, path) from None


def shown(path: str) -> str:
    text = printable(path)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
