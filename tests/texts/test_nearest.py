import pytest

from app.texts.nearest import nearest

CODE = [
    "def first(item):",
    "    return item",
    "",
    "def second(items):",
    "    total = 0",
    "    for item in items:",
    "        total += item",
    "    return total",
    "",
]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (["def second(items):", "    total = 1"], range(3, 5)),
        (["def second(elements):"], range(3, 4)),
        (["    for item in items:", "        total = total + item", "    return total"], range(5, 8)),
        (["import os", "def first(item):", "    return item"], range(0, 2)),
        (["    return total", "", "print(second([1]))"], range(7, 9)),
        (["nothing at all like it"], None),
        ([""], None),
        ([], None),
    ],
)
def test_the_lines_most_like_those_sought_are_found(wanted: list[str], place: range | None) -> None:
    assert nearest(CODE, wanted) == place


def test_in_nothing_is_nothing() -> None:
    assert nearest([], ["a line that is sought"]) is None


@pytest.mark.parametrize("line", ["same line again", "{", ""])
def test_a_text_of_one_line_over_and_over_is_answered_too(line: str) -> None:
    lines, wanted = [line] * 100_000, [line] * 1000 + ["another one"]

    assert nearest(lines, wanted) == (range(0, 1001) if line else None)
