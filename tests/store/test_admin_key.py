import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import admin_key
from app.store.admin_key import FILE_NAME


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_fresh_service_has_no_key_until_it_makes_one(tmp_path: Path) -> None:
    assert admin_key.read(tmp_path) is None

    made = admin_key.read_or_create(tmp_path)

    assert re.fullmatch(r"tk_[A-Za-z0-9_-]{43}", made)
    assert admin_key.read(tmp_path) == made


def test_the_key_stays_the_same_over_starts(tmp_path: Path) -> None:
    assert admin_key.read_or_create(tmp_path) == admin_key.read_or_create(tmp_path)


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_read_the_key_file_whatever_the_umask(tmp_path: Path) -> None:
    admin_key.read_or_create(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_start_that_died_half_way_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("")

    made = admin_key.read_or_create(tmp_path)

    assert len(made) == 46
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_key_the_operator_wrote_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("  tk_own\n\n")

    assert admin_key.read_or_create(tmp_path) == "tk_own"
