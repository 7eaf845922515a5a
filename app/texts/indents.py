"""Indents: lines that were written for another depth, put where the lines around them really stand."""

from collections.abc import Iterable


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


class Shift:
    """Which indent of the file each indent of the writer stands for, as far as lines of both show it.

    The line nearest before counts, so tell it of lines as they come; before the first, all of them are told.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._known: dict[str, str] = {}
        for theirs, ours in reversed(list(pairs)):
            self.tell(theirs, ours)

    def tell(self, theirs: str, ours: str) -> None:
        """One line as it was written, and as it stands in the file."""
        if theirs.strip() and ours.strip():
            self._known[indent_of(theirs)] = indent_of(ours)

    def put(self, line: str) -> str:
        """A new line where it belongs."""
        text = line.lstrip()
        if not text or not self._known:
            return line
        return self._meant(indent_of(line)) + text

    def _meant(self, indent: str) -> str:
        known = max((known for known in self._known if indent.startswith(known)), key=len, default=None)
        if known is not None:
            return self._known[known] + indent[len(known) :]
        shallow = min(self._known, key=len)
        if not shallow.startswith(indent):
            return indent
        # Less deep than every line that is known: as much less in the file.
        ours = self._known[shallow]
        return ours[: max(0, len(ours) - len(shallow) + len(indent))]
