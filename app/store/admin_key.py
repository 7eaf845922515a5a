"""The admin key of a fresh service: made on first start, kept in a file only its owner can read."""

from pathlib import Path

from app.core.principals import new_token
from app.store.atomic_write import written

FILE_NAME = "admin.key"


def read(data_dir: Path) -> str | None:
    path = data_dir / FILE_NAME
    return path.read_text().strip() if path.exists() else None


def read_or_make(data_dir: Path) -> str:
    if token := read(data_dir):
        return token
    token = new_token()
    with written(data_dir / FILE_NAME, replace=True) as file:
        file.write_text(token + "\n")
    return token
