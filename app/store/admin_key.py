"""The admin key of a fresh service: made on first start, kept in a file only its owner can read."""

import os
from pathlib import Path

from app.core.principals import new_token

FILE_NAME = "admin.key"


def read(data_dir: Path) -> str | None:
    path = data_dir / FILE_NAME
    return path.read_text().strip() if path.exists() else None


def read_or_make(data_dir: Path) -> str:
    if token := read(data_dir):
        return token
    token = new_token()
    fresh = data_dir / f"{FILE_NAME}.new"
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(data_dir / FILE_NAME)
    return token
