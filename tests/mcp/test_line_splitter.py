"""A stream of lines, cut wherever it may be; too long ones are never held."""

import pytest

from app.mcp.client.transports.stdio import LineSplitter


class Heard:
    """A cutter with a limit of ten bytes, and what it told."""

    def __init__(self) -> None:
        self.dropped = 0
        self.edges: list[tuple[bytes, bytes]] = []
        self.lines = LineSplitter(10, self._drop, lambda first, last: self.edges.append((first, last)))

    def _drop(self) -> None:
        self.dropped += 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_whole_however_they_were_cut(size: int) -> None:
    heard, data = Heard(), b"one\n\ntwo\n0123456789\nrest"

    lines = [line for at in range(0, len(data), size) for line in heard.lines.feed(data[at : at + size])]

    assert lines == [b"one", b"", b"two", b"0123456789"]
    assert heard.lines.rest() == b"rest"
    assert heard.dropped == 0


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_a_line_that_is_too_long_is_told_of_and_the_next_one_comes(size: int) -> None:
    heard, data = Heard(), b"<begins and ends>\nnext\n<another that does>\n"

    lines = [line for at in range(0, len(data), size) for line in heard.lines.feed(data[at : at + size])]

    assert lines == [b"next"]
    assert heard.dropped == 2
    assert [(first[:1], last[-1:]) for first, last in heard.edges] == [(b"<", b">"), (b"<", b">")]


def test_of_a_line_without_an_end_nothing_is_held() -> None:
    heard = Heard()
    for _ in range(1000):
        assert heard.lines.feed(b"x" * 1000) == []

    assert heard.dropped == 1
    assert heard.lines.rest() == b""
    assert heard.edges == []
