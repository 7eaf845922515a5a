"""Uploads on this machine's disk: each a file in a folder of the service's own, where no workspace can be."""

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

WHAT = "the upload"
PART = ".part"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ID = re.compile(r"[0-9a-f]{32}")


class SpooledUpload:
    """The `Upload` port. While it comes, its file has another name. The file is closed when nobody writes any more."""

    def __init__(self, spool: "SpooledUploads") -> None:
        self.id = secrets.token_hex(16)
        self.size = 0
        self._spool = spool
        self._digest = hashlib.sha256()
        try:
            self._file = os.fdopen(os.open(self._name + PART, NEW, 0o600), "wb", buffering=0)
        except OSError as error:
            raise _refused(error) from None

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
            raise _refused(error) from None

    def finish(self) -> None:
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._name + PART, self._name)
            _sync(self._spool.folder)
        except OSError as error:
            raise _refused(error) from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    @property
    def _name(self) -> str:
        return os.path.join(self._spool.folder, self.id)


class SpooledUploads:
    """The `Uploads` port. All that is here has `most` bytes at most: who waits for a person keeps its upload."""

    def __init__(self, folder: Path, most: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = str(folder)
        self._most = most
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
            sentence = "The upload is not there any more; send the file again."
            raise FileFailed(errno.ENOENT, WHAT, sentence) from None
        return os.fdopen(fd, "rb")

    def discard(self, id: str) -> None:
        if not _ID.fullmatch(id):  # it comes out of a call's arguments, and these can say anything
            return
        for name in (id + PART, id):  # in this order, because one that is just being finished changes its name
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
                raise FileFailed(errno.ENOENT, WHAT, "The upload was given up.")
            if sum(self._sizes.values()) + size > self._most:
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


def _refused(error: OSError) -> FileFailed:
    number = error.errno or errno.EIO
    return FileFailed(number, WHAT, f"The upload cannot be kept: {os.strerror(number)}.")
