"""Shell scripts as values: the commands of one, what they are redirected to, and what of it is unclear.

What cannot be said of a shell script.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.text.bash.unclear import Unclear
from app.text.bash.words import Word


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, before a command or by itself."""

    name: str
    value: Word

    @property
    def plain(self) -> str:
        return f"{self.name}={self.value.plain}"


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that something is read from or written to. Those between descriptors are left out."""

    at: int
    target: Word
    is_write: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command, and what it runs in turn.

    `at` is where it ends in the script, behind its redirects: they are done before it runs. Up to the byte
    `sure_until` everything runs only if this command succeeded. One that is open gets more words than are known;
    `stdin` is the here-document it reads.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    inner: "tuple[Script, ...]" = ()
    at: int = 0
    sure_until: int = 0
    is_repeated: bool = False
    is_open: bool = False
    stdin: Word | None = None

    @property
    def name(self) -> Word:
        return self.words[0]

    @property
    def plain(self) -> str:
        return " ".join(word.plain for word in self.words)


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs, in its order. `unclear` are the parts of which nobody can say it.

    A flat script is simple commands with `&&` between them and nothing else.
    """

    commands: tuple[Simple, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unclear: tuple[Unclear, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_flat: bool = True

    def every(self) -> Iterator["Script"]:
        """The script and those inside its commands."""
        yield self
        for command in self.commands:
            for inner in command.inner:
                yield from inner.every()


@dataclass(slots=True)
class Found:
    """What was found of a script so far."""

    commands: list[Simple] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    unclear: list[Unclear] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    is_background: bool = False
    is_flat: bool = True

    def script(self) -> Script:
        return Script(
            tuple(self.commands),
            tuple(self.redirects),
            tuple(self.assignments),
            tuple(self.unclear),
            tuple(self.functions),
            self.is_background,
            self.is_flat,
        )
