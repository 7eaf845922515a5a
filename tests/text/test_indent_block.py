"""The engine against the rule told naively: all lines in a list, all indents beforehand."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text import file_lines
from app.text.file_lines import Block, Shape, find_block

ROOM = 10**9
WHITE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2005\u200a\u2028\u2029\u202f\u205f\u3000"
FIRST = "def one():\n    # says\n    x = 1\n\n    if x:\n        y()\n\nz = 2\n"

indents = st.sampled_from(["", "", " ", "  ", "    ", "\t", "    \t", "        ", "\t\t"])
contents = st.sampled_from(["x", "x", "}", "# c", "// c", "-- c", "", "", "\xa0", "\u3000", "\x1c", "\r", "é", "x\xa0"])
lines = st.tuples(indents, contents, st.sampled_from(["\n", "\n", "\r\n"])).map("".join)
texts = st.tuples(st.lists(lines, min_size=1, max_size=25), st.booleans()).map(
    lambda made: "".join(made[0]) if made[1] else "".join(made[0]).rstrip("\r\n") or "x"
)
shapes = st.builds(Shape, levels=st.integers(0, 3), siblings=st.booleans(), header=st.booleans())


def naive(text: str, anchor: int, shape: Shape, limit: int) -> list[int]:
    """The numbers of the lines of a block, by the book."""
    rows = text.split("\n")[: -1 if text.endswith("\n") else None]
    if min(limit, len(rows)) == 1:
        return [anchor]
    depths = naive_depths(rows)
    here = anchor - 1
    least = max(0, depths[here] - 4 * shape.levels) if shape.levels else 0
    taken, edges = [here], {-1: 0, 1: 0}
    ways = [-1, 1]
    while ways:
        for way in list(ways):
            place = taken[0] - 1 if way < 0 else taken[-1] + 1
            if len(taken) == limit or not 0 <= place < len(rows) or depths[place] < least:
                ways.remove(way)
                continue
            is_edge = depths[place] == least and not shape.siblings
            is_header = way < 0 and shape.header and rows[place].strip(WHITE).startswith(("#", "//", "--"))
            if is_edge and edges[way] and not is_header:
                ways.remove(way)
                continue
            edges[way] += is_edge
            taken = sorted([*taken, place])
    filled = [place for place in taken if rows[place].strip(WHITE)]
    return [place + 1 for place in taken if filled and filled[0] <= place <= filled[-1]]


def naive_depths(rows: list[str]) -> list[int]:
    depths = [0]
    for row in rows:
        white = row[: len(row) - len(row.lstrip(" \t"))]
        depths.append(len(white) + 3 * white.count("\t") if row.strip(WHITE) else depths[-1])
    return depths[1:]


def numbers(found: Block | None) -> list[int] | None:
    return None if found is None else [line.number for line in found.lines]


@given(
    text=texts, anchor=st.integers(1, 30), shape=shapes, limit=st.integers(1, 30), step=st.sampled_from([1, 3, 4096])
)
def test_blocks_are_those_of_the_rule(text: str, anchor: int, shape: Shape, limit: int, step: int) -> None:
    count = text.count("\n") + (not text.endswith("\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_lines, "LOOK_BACK_BYTES", step)

        found = numbers(find_block(text.encode(), anchor, shape, limit=limit, max_bytes=ROOM))

    assert found == (naive(text, anchor, shape, limit) if anchor <= count else None)


@given(text=texts, shape=shapes)
def test_lines_stand_where_they_say(text: str, shape: Shape) -> None:
    data = text.encode()
    rows = data.split(b"\n")

    found = find_block(data, 1, shape, limit=99, max_bytes=ROOM)

    assert found is not None
    assert [data[line.start : line.end].removesuffix(b"\n") for line in found.lines] == [
        rows[line.number - 1] for line in found.lines
    ]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(levels=1), [1, 2, 3, 4, 5, 6]),
        (Shape(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Shape(levels=1, siblings=True), [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_a_body_has_its_head_and_what_is_below_it(shape: Shape, expected: list[int]) -> None:
    text = FIRST if shape != Shape(levels=1) else FIRST.replace("z = 2", "")

    assert numbers(find_block(text.encode(), 3, shape, limit=99, max_bytes=ROOM)) == expected


@pytest.mark.parametrize(("limit", "is_cut"), [(3, True), (7, True), (8, False), (99, False)])
def test_a_block_says_whether_it_was_cut(limit: int, is_cut: bool) -> None:
    found = find_block(b"a:\n b\n b\n b\n b\n b\n b\nc\n", 3, Shape(), limit=limit, max_bytes=ROOM)

    assert found is not None
    assert (len(found.lines), found.is_cut, found.is_too_long) == (min(limit, 8), is_cut, False)


def test_a_block_ends_where_there_is_no_room_and_keeps_its_anchor() -> None:
    data = b"x" * 100 + b"\n"

    found = find_block(data * 50, 25, Shape(siblings=True), limit=99, max_bytes=1000)

    assert found is not None
    assert (found.is_cut, found.is_too_long) == (True, True)
    assert numbers(found) == list(range(20, 30))


def test_a_file_of_one_line_is_that_line_even_if_it_is_blank() -> None:
    assert numbers(find_block(b"  \n", 1, Shape(), limit=9, max_bytes=ROOM)) == [1]
    assert numbers(find_block(b"", 1, Shape(), limit=9, max_bytes=ROOM)) is None


@pytest.mark.parametrize("data", [b"\n" * 2**22, b" " * 2**22 + b"\n\n", b"\xc2\xa0" * 2**20 + b"\n\n", b"x\n" * 2**21])
def test_a_block_takes_no_more_memory_in_a_long_file(data: bytes) -> None:
    anchor = data.count(b"\n")
    tracemalloc.start()
    try:
        found = find_block(data, anchor, Shape(siblings=True), limit=10, max_bytes=ROOM)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found is not None
    assert peak < 2**18
