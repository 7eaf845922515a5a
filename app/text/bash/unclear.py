"""Parts of a shell script whose effect cannot be determined."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unclear:
    """A script, or a part of one, of which nobody can say what it would run. `text` is that part."""

    reason: str
    text: str


class Doubtful(Exception):
    """The tree of a script, or what stands in it, is not to be believed. It becomes an `Unclear`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
