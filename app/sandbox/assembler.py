"""A small assembler for the programs by which the kernel filters system calls (classic BPF).

A program reads numbers of the call it judges, jumps forward, and returns a verdict.
"""

import struct

LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
FARTHEST = 255

NUMBER, ARCHITECTURE = 0, 4
"""Where in what the kernel shows these two are found."""


def argument(index: int) -> int:
    """Where the low half of an argument is found; both architectures begin with the low half."""
    return 16 + 8 * index


class Assembler:
    """Steps in their order. A jump names labels that are set later; without a label it goes to the next step."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, str | None, str | None]] = []
        self._labels: dict[str, int] = {}
        self._count = 0

    def load(self, offset: int) -> None:
        self._steps.append((LOAD, offset, None, None))

    def mask(self, bits: int) -> None:
        self._steps.append((AND, bits, None, None))

    def jump(self, code: int, value: int, *, yes: str | None = None, no: str | None = None) -> None:
        self._steps.append((code, value, yes, no))

    def answer(self, verdict: int) -> None:
        self._steps.append((RETURN, verdict, None, None))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._steps)

    def name(self) -> str:
        """A label that nobody else has."""
        self._count += 1
        return f"#{self._count}"

    def assemble(self) -> bytes:
        return b"".join(
            struct.pack("<HBBI", code, self._distance(index, yes), self._distance(index, no), value)
            for index, (code, value, yes, no) in enumerate(self._steps)
        )

    def _distance(self, index: int, label: str | None) -> int:
        distance = self._labels[label] - index - 1 if label else 0
        if not 0 <= distance <= FARTHEST:
            raise ValueError(f"the jump from step {index} to {label} is {distance} steps")
        return distance
