"""Uploads: whole or not there, bounded all together, and gone when nobody needs them."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.errors import FileFailed, TooBusy
from app.sandbox.files.uploads import SpooledUpload, SpooledUploads


@pytest.fixture
def spool(tmp_path: Path) -> SpooledUploads:
    return SpooledUploads(tmp_path / "uploads", 100)


def kept(spool: SpooledUploads, *pieces: bytes) -> SpooledUpload:
    upload = spool.begin()
    for piece in pieces:
        upload.write(piece)
    upload.finish()
    return upload


def test_what_was_written_can_be_read_when_it_is_whole(spool: SpooledUploads, tmp_path: Path) -> None:
    upload = kept(spool, b"one ", b"", b"two\0\xff")

    with spool.open(upload.id) as file:
        assert file.read() == b"one two\0\xff"
    assert (upload.size, upload.sha256) == (9, hashlib.sha256(b"one two\0\xff").hexdigest())
    assert os.listdir(tmp_path / "uploads") == [upload.id]
    assert (tmp_path / "uploads").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "uploads" / upload.id).stat().st_mode & 0o777 == 0o600


def test_what_is_not_whole_is_not_there(spool: SpooledUploads) -> None:
    upload = spool.begin()
    upload.write(b"half")

    with pytest.raises(FileFailed) as caught:
        spool.open(upload.id)
    assert caught.value.code == "ENOENT"


@pytest.mark.parametrize("id", ["", ".", "..", "../x", "/etc/passwd", "0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n"])
def test_only_what_it_made_itself_is_opened_or_taken_away(spool: SpooledUploads, tmp_path: Path, id: str) -> None:
    for path in (tmp_path / "x", tmp_path / "uploads" / ("0" * 31), tmp_path / "uploads" / ("0" * 33)):
        path.write_text("x")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(FileFailed) as caught:
        spool.open(id)
    spool.discard(id)

    assert caught.value.code == "ENOENT"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_its_place_is_not_followed(spool: SpooledUploads, tmp_path: Path) -> None:
    (tmp_path / "uploads" / ("0" * 32)).symlink_to("/etc/passwd")

    with pytest.raises(FileFailed):
        spool.open("0" * 32)


def test_all_together_have_so_much_room_and_what_goes_makes_some(spool: SpooledUploads) -> None:
    first = kept(spool, bytes(60))
    second = spool.begin()
    second.write(bytes(40))

    with pytest.raises(TooBusy):
        second.write(b"x")
    spool.discard(first.id)
    second.write(bytes(60))
    with pytest.raises(TooBusy):
        kept(spool, b"x")


def test_what_an_earlier_start_left_counts(spool: SpooledUploads, tmp_path: Path) -> None:
    left, half = kept(spool, bytes(60)), spool.begin()
    half.write(bytes(40))

    again = SpooledUploads(tmp_path / "uploads", 100)

    with pytest.raises(TooBusy):
        kept(again, b"x")
    assert again.sweep({left.id}) == 2
    assert os.listdir(tmp_path / "uploads") == [left.id]
    assert kept(again, bytes(40)).size == 40


@pytest.mark.parametrize("is_whole", [True, False])
def test_discarding_leaves_nothing_and_may_come_twice(spool: SpooledUploads, tmp_path: Path, is_whole: bool) -> None:
    upload = spool.begin()
    upload.write(b"x")
    if is_whole:
        upload.finish()

    for _ in range(2):
        spool.discard(upload.id)

    assert os.listdir(tmp_path / "uploads") == []


def test_who_writes_on_after_it_was_given_up_leaves_nothing(spool: SpooledUploads, tmp_path: Path) -> None:
    upload = spool.begin()
    spool.discard(upload.id)

    with pytest.raises(FileFailed):
        upload.write(b"x")
    with pytest.raises(FileFailed):
        upload.finish()
    assert os.listdir(tmp_path / "uploads") == []
    assert kept(spool, bytes(100)).size == 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_what_the_disk_refuses_is_said_by_its_name(
    spool: SpooledUploads, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "no")

    upload = spool.begin()
    upload.write(b"x")
    tries: list[tuple[str, Callable[[], object]]] = [("fsync", upload.finish), ("open", spool.begin)]
    for name, act in tries:
        monkeypatch.setattr(os, name, refuse)
        with pytest.raises(FileFailed) as caught:
            act()
        monkeypatch.undo()
        assert caught.value.code == errno.errorcode[number]
