"""Uploads on the local disk: each is a file in a folder of the service, outside all workspaces."""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from app.core.errors import FileFailed, TooBusy

NAME = "the upload"
PART = ".part"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ID = re.compile(r"[0-9a-f]{32}")


class SpooledUpload:
    """The `Upload` port. Until it is finished its file has another name."""

    def __init__(self, spool: "SpooledUploads") -> None:
        self.id = secrets.token_hex(16)
        self.size = 0
        self._spool = spool
        self._digest = hashlib.sha256()
        try:
            self._file = os.fdopen(os.open(self._name + PART, NEW, 0o600), "wb", buffering=0)
        except OSError as error:
            raise _write_error(error) from None

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        self._spool.make_room(self.id, len(data))
        self._digest.update(data)
        self.size += len(data)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _write_error(error) from None

    def finish(self) -> None:
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._name + PART, self._name)
            _sync(self._spool.folder)
        except OSError as error:
            raise _write_error(error) from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def _name(self) -> str:
        return os.path.join(self._spool.folder, self.id)


class SpooledUploads:
    """The `Uploads` port. All uploads together may have `max_bytes`: calls that wait for an answer keep theirs."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = str(folder)
        self._max_bytes = max_bytes
        self._sizes = {path.name.removesuffix(PART): path.stat().st_size for path in folder.iterdir()}
        self._lock = Lock()

    def begin(self) -> SpooledUpload:
        upload = SpooledUpload(self)
        self._sizes[upload.id] = 0
        return upload

    def open(self, id: str) -> BinaryIO:
        try:
            fd = os.open(self._path(id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, ValueError):
            sentence = "The upload does not exist any more; send the file again."
            raise FileFailed(errno.ENOENT, NAME, sentence) from None
        return os.fdopen(fd, "rb")

    def discard(self, id: str) -> None:
        if not _ID.fullmatch(id):  # it comes from the arguments of a call
            return
        for name in (id + PART, id):  # in this order, because `finish` renames the one to the other
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        with self._lock:
            self._sizes.pop(id, None)

    def sweep(self, kept: Collection[str]) -> int:
        left = {name.removesuffix(PART) for name in os.listdir(self.folder)}.difference(kept)
        for id in left:
            self.discard(id)
        return len(left)

    def make_room(self, id: str, size: int) -> None:
        with self._lock:
            if id not in self._sizes:
                raise FileFailed(errno.ENOENT, NAME, "The upload was discarded.")
            if sum(self._sizes.values()) + size > self._max_bytes:
                raise TooBusy("More uploads wait for their calls than the service has room for; try again later.", 5)
            self._sizes[id] += size

    def _path(self, id: str) -> str:
        if not _ID.fullmatch(id):
            raise ValueError(id)
        return os.path.join(self.folder, id)


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_error(error: OSError) -> FileFailed:
    number = error.errno or errno.EIO
    return FileFailed(number, NAME, f"The upload cannot be stored: {os.strerror(number)}.")
