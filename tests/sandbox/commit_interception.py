"""Getting in between a commit and the system: every call of the one to the other can be watched."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from app.core.ports import Change
from app.sandbox.files import openat2, renameat2
from app.sandbox.files.workspace import LocalWorkspace

CALLS = ("open", "mkdir", "read", "write", "fstat", "fchmod", "utime", "fsync", "rename", "link", "stat", "access")
LATE_CALLS = ("unlink", "rmdir", "close", "listdir")

Watch = Callable[[bool], int | None]
"""Told before each call whether it tells errors by its answer; the errno to answer then, or None to go on."""


def intercept(patch: pytest.MonkeyPatch, watch: Watch, calls: tuple[str, ...] = CALLS) -> None:
    def watched(call: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def instead(*args: Any, **more: Any) -> Any:
            answer = watch(sign != 0)
            return call(*args, **more) if answer is None else sign * answer

        return instead

    for name in calls:
        patch.setattr(os, name, watched(getattr(os, name), 0))
    patch.setattr(openat2, "_syscall", watched(openat2._syscall, -1))
    patch.setattr(renameat2, "_call", watched(renameat2._call, 1))


def four_changes(ws: LocalWorkspace, size: int = 1) -> list[Change]:
    """A replacement, a creation in a folder that has to be made, a removal, and another replacement."""
    return [
        Change(path="a", data=b"ALPHA" * size, before=ws.stamp("a")),
        Change(path="new/folder/file", data=b"new" * size, before=None),
        Change(path="b", data=None, before=ws.stamp("b")),
        Change(path="d/c", data=b"GAMMA" * size, before=ws.stamp("d/c")),
    ]
