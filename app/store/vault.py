"""The vault: bytes sealed with a key that is kept beside the database and never inside it."""

import base64
import binascii
import os
import secrets
import stat
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.errors import SealBroken, VaultLocked
from app.store.atomic_write import written

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE_NAME = "secrets.key"
KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"


class Vault:
    """Seals and opens with AES-256-GCM. What is sealed about one thing does not open as being about another."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, data: bytes, about: str) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return VERSION + nonce + self._cipher.encrypt(nonce, data, VERSION + about.encode())

    def open(self, sealed: bytes, about: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(VERSION) + NONCE_BYTES
        nonce, rest = sealed[len(VERSION) : start], sealed[start:]
        if not sealed.startswith(VERSION) or len(nonce) < NONCE_BYTES:
            raise SealBroken(f"What was sealed as {about} is not in a form this Toolcrib knows.")
        try:
            return self._cipher.decrypt(nonce, rest, VERSION + about.encode())
        except InvalidTag:
            raise SealBroken(f"What was sealed as {about} was changed, or sealed with another {FILE_NAME}.") from None

    @cached_property
    def _cipher(self) -> "AESGCM":
        """Loaded with the first use: a service that seals nothing should not pay for it at start."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)


def read(data_dir: Path) -> Vault | None:
    """The vault of the key file; None when there is no such file."""
    path = data_dir / FILE_NAME
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VaultLocked(f"The key file {path} cannot be read: {error.strerror}.") from None
    with os.fdopen(fd, "rb") as file:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o077:
            raise VaultLocked(
                f"The key file {path} is open to others than its owner (mode {mode:04o}). Run `chmod 600 {path}`, "
                "and renew the secrets if somebody may have read it."
            )
        return Vault(_decoded(path, file.read(1024)))


def make(data_dir: Path) -> Vault:
    """A new key in a new file, on the disk before anything is sealed with it."""
    key = secrets.token_bytes(KEY_BYTES)
    with written(data_dir / FILE_NAME, replace=True) as file:
        file.write_bytes(base64.b64encode(key) + b"\n")
    return Vault(key)


def _decoded(path: Path, text: bytes) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise VaultLocked(
            f"The key file {path} is broken: it must hold {KEY_BYTES} bytes in base64. Put it back from a backup."
        )
    return key
