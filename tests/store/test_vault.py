import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import SealBroken, VaultLocked
from app.store import vault
from app.store.vault import FILE_NAME, Vault

DATA = b"a value nobody shall see"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_sealed_is_opened_again_and_does_not_show(tmp_path: Path) -> None:
    made = vault.create(tmp_path)

    sealed = made.seal(DATA, "secrets/ada/TOKEN")

    assert made.open(sealed, "secrets/ada/TOKEN") == DATA
    assert DATA not in sealed
    assert sealed[:1] == b"\x01"
    assert len(sealed) == 1 + 12 + len(DATA) + 16


def test_nothing_at_all_can_be_sealed_too(tmp_path: Path) -> None:
    made = vault.create(tmp_path)

    assert made.open(made.seal(b"", "a"), "a") == b""


def test_the_same_is_never_sealed_the_same_way_twice(tmp_path: Path) -> None:
    made = vault.create(tmp_path)

    assert len({made.seal(DATA, "a") for _ in range(100)}) == 100


def test_a_later_start_opens_what_an_earlier_one_sealed(tmp_path: Path) -> None:
    sealed = vault.create(tmp_path).seal(DATA, "a")

    again = vault.read(tmp_path)

    assert again is not None
    assert again.open(sealed, "a") == DATA


def test_what_is_about_one_thing_does_not_open_as_another(tmp_path: Path) -> None:
    made = vault.create(tmp_path)

    with pytest.raises(SealBroken, match="The value b was changed"):
        made.open(made.seal(DATA, "a"), "b")


def test_another_key_opens_nothing() -> None:
    sealed = Vault(b"1" * 32).seal(DATA, "a")

    with pytest.raises(SealBroken):
        Vault(b"2" * 32).open(sealed, "a")


def test_every_changed_byte_is_noticed() -> None:
    kept = Vault(b"1" * 32)
    sealed = kept.seal(DATA, "a")

    for place in range(len(sealed)):
        changed = bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]])
        with pytest.raises(SealBroken):
            kept.open(changed, "a")


def test_every_cut_is_noticed() -> None:
    kept = Vault(b"1" * 32)
    sealed = kept.seal(DATA, "a")

    for length in range(len(sealed)):
        with pytest.raises(SealBroken):
            kept.open(sealed[:length], "a")


def test_without_a_key_file_there_is_no_vault(tmp_path: Path) -> None:
    assert vault.read(tmp_path) is None


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_read_the_key_file_whatever_the_umask(tmp_path: Path) -> None:
    vault.create(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert len(base64.b64decode((tmp_path / FILE_NAME).read_text())) == 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_open_to_others_is_refused_with_the_command_that_mends_it(tmp_path: Path, mode: int) -> None:
    vault.create(tmp_path)
    (tmp_path / FILE_NAME).chmod(mode)

    with pytest.raises(VaultLocked, match=f"chmod 600 {tmp_path / FILE_NAME}") as refused:
        vault.read(tmp_path)

    assert f"(mode {mode:04o})" in str(refused.value)
    (tmp_path / FILE_NAME).chmod(0o400)
    assert vault.read(tmp_path) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        base64.b64encode(b"1" * 31),
        base64.b64encode(b"1" * 33),
        base64.b64encode(b"1" * 32)[:-1],
        b"?" + base64.b64encode(b"1" * 32),
        b"\xff" * 44,
        b"A" * 100_000,
    ],
)
def test_a_broken_key_file_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    (tmp_path / FILE_NAME).chmod(0o600)

    with pytest.raises(VaultLocked, match="is broken"):
        vault.read(tmp_path)


def test_a_key_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to(tmp_path / FILE_NAME)

    with pytest.raises(VaultLocked, match="cannot be read: Too many levels of symbolic links"):
        vault.read(tmp_path)
