"""The vault: encryption with a key in a file beside the database, never in it."""

import base64
import binascii
import os
import secrets
import stat
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.errors import SealBroken, VaultLocked
from app.store.atomic_write import atomic_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FILE_NAME = "secrets.key"
KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"


class Vault:
    """AES-256-GCM. `label` is associated data: what was sealed under one label cannot be opened under another."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, data: bytes, label: str) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return VERSION + nonce + self._cipher.encrypt(nonce, data, VERSION + label.encode())

    def open(self, sealed: bytes, label: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(VERSION) + NONCE_BYTES
        nonce, rest = sealed[len(VERSION) : start], sealed[start:]
        if not sealed.startswith(VERSION) or len(nonce) < NONCE_BYTES:
            raise SealBroken(f"The value {label} has a format this Toolcrib does not know.")
        try:
            return self._cipher.decrypt(nonce, rest, VERSION + label.encode())
        except InvalidTag:
            raise SealBroken(f"The value {label} was changed, or encrypted with another {FILE_NAME}.") from None

    @cached_property
    def _cipher(self) -> "AESGCM":
        """Imported on first use, for a faster start of services without secrets."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)


def read(data_dir: Path) -> Vault | None:
    """The vault of the key file; None when the file does not exist."""
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
                f"The key file {path} can be accessed by other users (mode {mode:04o}). Run `chmod 600 {path}`, "
                "and replace the secrets if another user may have read it."
            )
        return Vault(_decode(path, file.read(1024)))


def create(data_dir: Path) -> Vault:
    """Write a new key; it is synced to disk before its first use."""
    key = secrets.token_bytes(KEY_BYTES)
    with atomic_file(data_dir / FILE_NAME, replace=True) as file:
        file.write_bytes(base64.b64encode(key) + b"\n")
    return Vault(key)


def _decode(path: Path, text: bytes) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise VaultLocked(
            f"The key file {path} is broken: it must hold {KEY_BYTES} bytes in base64. Restore it from a backup."
        )
    return key
