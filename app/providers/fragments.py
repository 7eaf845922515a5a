"""Fragments of a JSON object, as a stream brings them."""


class Fragments:
    """Knows whether the object is closed without reading it from the start for every fragment."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scanned = 0
        self._depth = 0
        self._is_closed = False
        self._is_text = False
        self._is_escaped = False

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    def joined(self) -> str:
        return "".join(self._pieces)

    def is_whole(self) -> bool:
        for piece in self._pieces[self._scanned :]:
            for character in piece:
                self._step(character)
        self._scanned = len(self._pieces)
        return self._is_closed

    def _step(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_text:
            self._is_escaped = character == "\\"
            self._is_text = character != '"'
        elif character == '"':
            self._is_text = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._is_closed = self._depth == 0
