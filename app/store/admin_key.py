"""The generated admin key: a file with mode 0600, written at the first start."""

from pathlib import Path

from app.core.principals import new_token
from app.store.atomic_write import atomic_file

FILE_NAME = "admin.key"


def read(data_dir: Path) -> str | None:
    path = data_dir / FILE_NAME
    return path.read_text().strip() if path.exists() else None


def read_or_create(data_dir: Path) -> str:
    if token := read(data_dir):
        return token
    token = new_token()
    with atomic_file(data_dir / FILE_NAME, replace=True) as file:
        file.write_text(token + "\n")
    return token
