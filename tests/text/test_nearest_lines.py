import pytest

from app.text.edit import nearest_lines as module
from app.text.edit.nearest_lines import nearest
from tests.text.work_counter import work_of

FILE = [
    "import os",
    "",
    "def total(items):",
    "    result = 0",
    "    for item in items:",
    "        result += item.price",
    "    return result",
    "",
    "def average(items):",
    "    return total(items) / len(items)",
    "",
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        pytest.param(["def totl(items):"], range(2, 3), id="a typing mistake"),
        pytest.param(["for item in items:", "result += item.cost"], range(4, 6), id="one line is right"),
        pytest.param(["", "for item in things:", "    result += item.prize", ""], range(4, 6), id="none is right"),
        pytest.param(
            ["def total(items):", "    total = 0", "    result = 0", "    for item in items:", "    return result"],
            range(2, 7),
            id="a line too many",
        ),
        pytest.param(
            ["def average(items):", "  return total(items) / length(items)", "x"], range(8, 11), id="over the end"
        ),
    ],
)
def test_the_lines_most_like_the_wanted_ones_are_found(wanted: list[str], found: range) -> None:
    assert nearest(FILE, wanted) == found


@pytest.mark.parametrize("wanted", [[], [""], ["  ", "\t"], ["completely different"], ["zz"]])
def test_where_nothing_is_like_them_nothing_is_found(wanted: list[str]) -> None:
    assert nearest(FILE, wanted) is None


def test_an_empty_file_has_nothing_near() -> None:
    assert nearest([], ["a line"]) is None
    assert nearest([""], ["a line"]) is None


def test_of_equals_the_first_is_taken() -> None:
    assert nearest(["some line one", "other", "some line one"], ["some line two"]) == range(0, 1)


def test_a_long_text_is_found_by_its_first_lines() -> None:
    file = [f"line {number} of the file" for number in range(1000)]
    wanted = [f"line {number} of the file" if number % 10 else "changed" for number in range(300, 700)]

    assert nearest(file, wanted) == range(300, 700)


def test_what_is_everywhere_tells_no_place_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OCCURRENCES", 10)

    assert nearest(["}"] * 50 + ["first thing", "}"], ["frist thing", "}"]) == range(50, 52)
    assert nearest(["}"] * 50, ["}", "x"]) is None


def test_it_looks_closely_at_few_places_only() -> None:
    short = work_of(lambda: nearest([f"value {i} here" for i in range(2000)], [f"value {i} hers" for i in range(50)]))
    long = work_of(lambda: nearest([f"value {i} here" for i in range(8000)], [f"value {i} hers" for i in range(50)]))

    assert long.calls < 6 * short.calls
    assert long.searched < 6 * short.searched
