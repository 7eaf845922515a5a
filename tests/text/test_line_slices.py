from io import BytesIO
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text import file_lines

texts = st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"long line"]), max_size=40).map(b"".join)


@given(data=texts, lines=st.integers(min_value=1, max_value=50), block=st.integers(min_value=1, max_value=9))
def test_skipping_lines_ends_where_reading_them_would(data: bytes, lines: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_lines, "CHUNK_BYTES", block)
        file, read = BytesIO(data), BytesIO(data)

        skipped = file_lines.skip_lines(file, lines, Event())

    behind = [line for line in (read.readline() for _ in range(lines)) if line]
    assert (skipped, file.tell()) == (len(behind), read.tell())


@given(data=texts)
def test_after_every_line_comes_the_next(data: bytes) -> None:
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]

    assert [file_lines.offset_after(data, lines) for lines in range(1, len(ends) + 1)] == ends


def test_skipping_nothing_reads_nothing() -> None:
    file = BytesIO(b"one\ntwo\n")

    assert (file_lines.skip_lines(file, 0, Event()), file.tell()) == (0, 0)


def test_nobody_waiting_ends_the_skipping() -> None:
    stop = Event()
    stop.set()

    assert file_lines.skip_lines(BytesIO(b"one\ntwo\n"), 2, stop) == 0


@given(data=texts)
def test_lines_are_those_of_the_file(data: bytes) -> None:
    assert list(file_lines.read_lines(BytesIO(data), Event())) == BytesIO(data).readlines()


def test_of_a_long_line_only_its_beginning_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lines, "CHUNK_BYTES", 7)
    data = b"x" * 2000 + b"\nnext"

    assert list(file_lines.read_lines(BytesIO(data), Event())) == [b"x" * file_lines.READ_BYTES, b"next"]
