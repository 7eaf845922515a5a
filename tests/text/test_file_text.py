import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import BinaryFile, CallError, FileFailed, InvalidArgs
from app.text.file_text import Content, decode


def outcome(data: bytes) -> bytes | str:
    try:
        return decode(data, "a.txt").data
    except CallError as error:
        return error.code


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_what_is_read_and_written_back_is_the_same_or_is_refused(data: bytes) -> None:
    assert outcome(data) in (data, "BinaryFile", "EILSEQ")


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbfx", "é\r\n\u2028".encode(), b"a\rb"])
def test_text_of_any_kind_comes_back_to_the_byte(data: bytes) -> None:
    assert decode(data, "a.txt").data == data


def test_the_mark_is_no_part_of_the_text() -> None:
    assert decode(b"\xef\xbb\xbfa\n", "a.txt") == Content("a\n", has_bom=True)
    assert decode(b"a\n", "a.txt") == Content("a\n", has_bom=False)
    assert Content("a\n", has_bom=True).with_text("b").data == b"\xef\xbb\xbfb"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        pytest.param("hi".encode("utf-16"), "it is UTF-16", id="UTF-16 with a mark"),
        pytest.param(codecs.BOM_UTF16_BE + "hi".encode("utf-16-be"), "it is UTF-16", id="UTF-16, the other way round"),
        pytest.param("hi".encode("utf-32"), "it is UTF-32", id="UTF-32 with a mark"),
        pytest.param("some text\n".encode("utf-16-le"), "looks like UTF-16 without a byte", id="UTF-16 without one"),
        pytest.param("some text\n".encode("utf-16-be"), "looks like UTF-16 without a byte", id="and the other way"),
        pytest.param("café\n".encode("latin-1"), "byte 3 is invalid; it may be Latin-1", id="Latin-1"),
        pytest.param("日本".encode("shift-jis"), "byte 0 is invalid", id="Shift-JIS"),
        pytest.param(b"\xed\xa0\x80", "byte 0 is invalid", id="a surrogate"),
    ],
)
def test_another_encoding_is_refused_by_name(data: bytes, told: str) -> None:
    with pytest.raises(FileFailed, match=told) as caught:
        decode(data, "d/a.txt")

    assert caught.value.code == "EILSEQ"
    assert caught.value.message.startswith("d/a.txt is not UTF-8")


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\1", b"text\0more", b"\0", b"a\0b\0\0c"])
def test_what_has_a_nul_is_binary(data: bytes) -> None:
    with pytest.raises(BinaryFile, match=r"^a\.bin is a binary file"):
        decode(data, "a.bin")


def test_a_text_that_no_file_can_hold_is_the_models_mistake() -> None:
    with pytest.raises(InvalidArgs, match="lone surrogates"):
        _ = Content("a\ud800").data


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", "\n"),
        ("a", "\n"),
        ("a\nb\r\n", "\n"),
        ("a\r\nb\n", "\r\n"),
        ("\n", "\n"),
        ("\r\n", "\r\n"),
        ("a\rb\rc", "\r"),
        ("10%\r20%\r30%\n", "\n"),
        ("10%\r20%\r\n", "\r\n"),
    ],
)
def test_lines_end_as_the_first_one_does(text: str, end: str) -> None:
    assert Content(text).line_end == end
