import pytest

from app.core.errors import InvalidArgs
from app.core.ports import SearchResult
from app.text import ripgrep_output
from app.text.ripgrep_output import Hit, Line


def said(stdout: bytes = b"", *, code: int = 0, stderr: bytes = b"", is_cut: bool = False) -> SearchResult:
    return SearchResult(code, stdout, stderr, is_file=False, is_cut=is_cut)


def test_what_was_cut_off_in_the_middle_does_not_count() -> None:
    assert ripgrep_output.read_names(said(b"./a\0./b\0./c", is_cut=True)) == ["a", "b"]
    assert list(ripgrep_output.read_counts(said(b"./a\x0012\n./b\x001", is_cut=True))) == [Hit("a", count=12)]
    cut = said(b"./a\x001:x\n./a\x002:y", is_cut=True)
    assert list(ripgrep_output.read_lines(cut)) == [Hit("a", [Line(1, True, b"x")], count=1)]


def test_lines_of_files_whatever_their_names() -> None:
    told = said(b"./a\nb:1:\x001:x: y\n./a\nb:1:\x002-z\n./c\x007:\r\n")

    assert list(ripgrep_output.read_lines(told)) == [
        Hit("a\nb:1:", [Line(1, True, b"x: y"), Line(2, False, b"z")], count=1),
        Hit("c", [Line(7, True, b"\r")], count=1),
    ]


def test_names_that_are_no_utf8_can_be_used_and_shown() -> None:
    [name] = ripgrep_output.read_names(said(b"./caf\xe9\0"))

    assert (name, ripgrep_output.canonical_name("sub", name)) == ("caf\udce9", "sub/caf\ufffd")


@pytest.mark.parametrize(("folder", "name"), [(".", "a/b"), ("sub", "sub/a/b"), ("/opt/x", "/opt/x/a/b")])
def test_names_are_joined_to_the_folder(folder: str, name: str) -> None:
    assert ripgrep_output.canonical_name(folder, "a/b") == name


def test_names_are_ordered_folder_by_folder_and_by_their_bytes() -> None:
    names = ["a-b/x", "a/x", "a.txt", "Z", "é", "z"]

    assert sorted(names, key=ripgrep_output.sort_key) == ["Z", "a/x", "a-b/x", "a.txt", "z", "é"]


def test_a_search_that_could_not_begin_is_a_mistake_and_one_that_could_not_read_all_is_a_note() -> None:
    with pytest.raises(InvalidArgs, match=r"The search failed: unclosed group\."):
        ripgrep_output.require_success(
            said(code=2, stderr=b"rg: regex parse error:\n    (?:()\n    ^\nerror: unclosed group\n")
        )
    with pytest.raises(InvalidArgs, match=r"search failed: the literal is not allowed\."):
        ripgrep_output.require_success(said(code=2, stderr=b"rg: the literal is not allowed\n\nConsider something.\n"))

    half = said(code=2)
    ripgrep_output.require_success(half)
    assert ripgrep_output.notes(half, 0) == ["[some files or folders could not be read and were not searched]"]
