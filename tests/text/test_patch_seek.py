"""Seeking in whole texts finds what a look at line after line finds, and how much is gone over is counted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.text.patch import seek
from app.text.patch.seek import TYPOGRAPHY, Match, SeekableText, Windows, fold

PASSES: list[Callable[[str], str]] = [
    lambda line: line,
    str.rstrip,
    str.strip,
    lambda line: "".join(TYPOGRAPHY.get(char, char) for char in line.strip()),
]

LINE = st.sampled_from(
    ["a", "a ", " a", "  a", "b", "\ta\t", "", " ", "a-b", "a\u2013b", " a\u2212b", "\u201ca\u201d", '"a"']
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=12), st.sampled_from(["", "\n"]))

WANTED = st.lists(LINE, min_size=1, max_size=3)


def lines_of(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def plainly(text: str, wanted: list[str], start: int, *, is_at_end: bool) -> Match | None:
    """The rule as it is told: each pass over the whole rest, line by line."""
    lines = lines_of(text)
    first = max(start, len(lines) - len(wanted)) if is_at_end else start
    for number, same in enumerate(PASSES):
        for at in range(first, len(lines) - len(wanted) + 1):
            if [same(line) for line in lines[at : at + len(wanted)]] == [same(line) for line in wanted]:
                return Match(at, is_stripped=number > 1)
    return None


@contextmanager
def limits(**names: int) -> Iterator[None]:
    """Other limits than the usual ones, so that small texts go over them."""
    before = {name: getattr(seek, name) for name in names}
    vars(seek).update(names)
    try:
        yield
    finally:
        vars(seek).update(before)


@pytest.mark.parametrize(
    "over",
    [
        pytest.param({}, id="first by pieces"),
        pytest.param({"MAX_PLACES": 1}, id="by pieces that are at few places"),
        pytest.param({"MAX_PIECE_SEARCHES": 0}, id="by views"),
        pytest.param({"MAX_PIECE_SEARCHES": 0, "FAILED_BEFORE_SET": -1}, id="by views that know their lines"),
        pytest.param({"MAX_PIECE_SEARCHES": 0, "FAILED_BEFORE_SET": -1, "FAILED_BEFORE_WINDOWS": -1}, id="by windows"),
    ],
)
@settings(max_examples=80)
@given(text=TEXTS, sought=st.lists(st.tuples(WANTED, st.integers(0, 12), st.booleans()), max_size=6))
@example(text="a\n ", sought=[(["a"], 0, True), ([""], 0, True), (["a", ""], 0, False)])
@example(text="a", sought=[(["a"], 0, False)])
@example(text="a\nb", sought=[(["b"], 0, False), (["b"], 1, False), (["b"], 2, False), (["b"], 0, True)])
@example(text="\n", sought=[([""], 0, False), ([""], 0, True), ([""], 1, False)])
@example(text="", sought=[([""], 0, False), ([""], 0, True)])
def test_lines_are_found_where_a_plain_look_finds_them(
    over: dict[str, int], text: str, sought: list[tuple[list[str], int, bool]]
) -> None:
    sheet = SeekableText(text)

    with limits(**over):
        for wanted, start, is_at_end in sought:
            start = min(start, sheet.count)
            expected = plainly(text, wanted, start, is_at_end=is_at_end)
            assert sheet.seek(wanted, start, is_at_end=is_at_end) == expected


def test_no_lines_are_found_where_the_search_starts() -> None:
    assert SeekableText("a\nb\n").seek([], 1) == Match(1, is_stripped=False)


@given(TEXTS, st.data())
def test_pieces_are_cut_where_lines_begin(text: str, data: st.DataObject) -> None:
    sheet, lines = SeekableText(text), lines_of(text)
    ended = [f"{line}\n" for line in lines[:-1]] + [lines[-1] + "\n" * text.endswith("\n") for _ in lines[:1]]

    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(lines)))
        end = data.draw(st.integers(start, len(lines)))
        assert sheet.piece(start, end) == "".join(ended[start:end])
        assert sheet.lines(start, end) == lines[start:end]


def test_lines_far_from_each_other_are_cut_too() -> None:
    sheet = SeekableText("".join(f"{number}\n" for number in range(10_000)))

    assert [sheet.lines(at, at + 1) for at in (9000, 5, 5000, 4999, 9999)] == [
        ["9000"],
        ["5"],
        ["5000"],
        ["4999"],
        ["9999"],
    ]


def test_typography_is_folded() -> None:
    assert fold("\u2018a\u2019 \u2014 \u201cb\u201d\u00a0\u2026") == "'a' - \"b\" \u2026"


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), st.integers(0, 5))
def test_windows_are_found_by_their_hash(lines: list[str], wanted: list[str], start: int) -> None:
    places = [at for at in range(start, len(lines)) if lines[at : at + len(wanted)] == wanted]

    assert Windows(lines).find(wanted, start) == (places[0] if places else None)


def test_a_window_with_the_hash_of_another_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seek, "_PRIME", 3)

    assert Windows(list("abcdefgh")).find(["h"], 0) == 7
    assert Windows(list("abcdefgh")).find(["x"], 0) is None


def searched(sheet: SeekableText) -> float:
    """How often the whole text was gone over, by all searches together."""
    views = {id(view): view for view in (sheet.exact, sheet.right_stripped, sheet.stripped, sheet.folded)}
    return sum(view.searched for view in views.values()) / len(sheet.text)


BIG = "".join(f"    value = {number}\n" for number in range(20_000))


def test_hunks_in_order_are_found_by_one_look_at_the_text() -> None:
    sheet, here = SeekableText(BIG), 0

    for number in range(0, 20_000, 20):
        found = sheet.seek([f"    value = {number}", f"    value = {number + 1}"], here)
        assert found == Match(number, is_stripped=False)
        here = number + 2

    assert searched(sheet) <= 1


def test_lines_that_are_not_there_cost_a_few_looks() -> None:
    sheet = SeekableText(BIG)

    assert sheet.seek([*BIG.split("\n")[100:149], "    value = x"], 0) is None

    assert searched(sheet) <= 2 + seek.MAX_PIECES


def test_many_hunks_of_another_indentation_cost_a_few_looks() -> None:
    sheet, here = SeekableText(BIG), 0

    for number in range(0, 20_000, 20):
        found = sheet.seek([f"value = {number}", f"\tvalue = {number + 1}"], here)
        assert found == Match(number, is_stripped=True)
        here = number + 2

    assert searched(sheet) <= seek.MAX_PIECE_SEARCHES + 2 * seek.FAILED_BEFORE_SET + 4


def test_lines_that_almost_fit_everywhere_cost_a_bounded_number_of_looks() -> None:
    """Each hunk is there but for a space at the end, while its lines as they are stand apart, at the end."""
    text = "".join(f"a{number} \nb{number}\n" for number in range(3000))
    text += "".join(f"a{number}\n-\nb{number}\n" for number in range(3000))
    sheet, here = SeekableText(text), 0

    for number in range(3000):
        assert sheet.seek([f"a{number}", f"b{number}"], here) == Match(2 * number, is_stripped=False)
        here = 2 * number + 2

    assert searched(sheet) <= seek.MAX_PIECE_SEARCHES + seek.FAILED_BEFORE_WINDOWS + 8


def test_the_same_line_over_and_over_costs_one_look() -> None:
    sheet = SeekableText("same\n" * 100_000)

    assert sheet.seek(["same"] * 50 + ["other"], 0) is None
    assert sheet.seek(["same"] * 50, 99_000) == Match(99_000, is_stripped=False)
    assert sheet.seek([" same"] * 50, 500) == Match(500, is_stripped=True)

    assert searched(sheet) <= 5
