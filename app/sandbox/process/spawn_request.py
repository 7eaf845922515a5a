"""Orders: what is said to whoever starts a process, and nothing that has to be looked up there.

The spawner sees them as plain values that look the same, so that it need not know this module.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

Stage = Literal["order", "terminal", "limits", "folder", "walls", "program"]
"""What a process is at before it is the program it was started for."""


class NotStarted(OSError):
    """A process could not be started; `stage` is what it was at."""

    def __init__(self, number: int, message: str, name: str | None, stage: Stage) -> None:
        super().__init__(number, message, name)
        self.stage = stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file that is to be seen behind walls, where it is outside.

    With `inode`, its device and number, nothing else that has come to stand there is taken for it.
    """

    path: str
    is_writable: bool = False
    inode: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSpec:
    """The walls in detail. `hidden` are folders inside readable places that must not be seen.

    `protected` are paths in writable places that stay as they are; one that ends in a slash is a folder.
    `proxy`: None without a network, 0 for a listener of its own inside a network namespace, else the one port of this
    machine that may be connected to. `program` is the whole path of bwrap, `options` are those it has of the options
    that not every version has.
    """

    backend: Literal["bwrap", "landlock", "none"]
    places: tuple[Mount, ...] = ()
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    temporary: str | None = None
    network: Literal["none", "allowlist", "full"] = "none"
    proxy: int | None = None
    program: str | None = None
    options: tuple[str, ...] = ()
    temporary_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """One process: what it is, as whom it runs, and what ends it.

    `cwd` is a path; with `folder`, a descriptor of the service, it begins in what that one holds open. Descriptors in
    `passed` are open for it under the same numbers. `identity` is who it becomes, user and group. `limits` are the
    kernel's, by name without `RLIMIT_`; what is in force already is never widened. Over `memory` bytes or `processes`
    of the whole tree it is ended. `grace`: seconds that what it leaves behind has to say its last. `readable`: it
    opens nothing for reading but these (descriptors or paths) and what is below them.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    identity: tuple[int, int] | None = None
    limits: dict[str, int] = field(default_factory=dict)
    memory: int | None = None
    processes: int | None = None
    grace: float = 0.05
    has_terminal: bool = False
    enclosure: IsolationSpec | None = None
    folder: int | None = None
    passed: tuple[int, ...] = ()
    readable: tuple[int | str, ...] | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors of the service that it speaks of, each once."""
        readable = (place for place in self.readable or () if isinstance(place, int))
        folder = () if self.folder is None else (self.folder,)
        return tuple(dict.fromkeys((*self.passed, *folder, *readable)))


def pack(value: Any) -> Any:
    """An order as it goes over the wire."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _OURS:
        return {name: pack(getattr(value, name)) for name in value.__slots__}
    if kind is tuple:
        return tuple([pack(part) for part in value])
    if kind is dict:
        return {name: pack(part) for name, part in value.items()}
    assert isinstance(value, Enum), f"a {kind.__name__} cannot be sent"
    return value.value


_PLAIN = frozenset({str, int, float, bool, type(None)})
_OURS = frozenset({SpawnRequest, IsolationSpec, Mount})
