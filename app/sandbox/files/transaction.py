"""Changes of files, all or none: each is written beside its place, synced, and put there by one rename.

First every change is looked at, then all new contents are written, then one after the other is put in its place. If
any of this fails, what was done is undone. Whoever reads meanwhile finds each file whole, old or new.

A file that is replaced is another file afterwards: it keeps its mode and, as far as the service may, its owner and
group; extended attributes are not kept, and other hard links of the old one keep the old content.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from app.core.errors import CallError
from app.core.ports import Change
from app.sandbox.files.atomic_replace import Swap, swap_for
from app.sandbox.files.errors import printable, unwritten, writing
from app.sandbox.files.parent_dirs import Parents
from app.sandbox.files.roots import ResolvedPath
from app.sandbox.files.temp_files import Names


@dataclass(frozen=True, slots=True)
class Target:
    """A change, and the place it is for."""

    change: Change
    place: ResolvedPath


def make(targets: Sequence[Target]) -> None:
    with closing(Parents()) as parents, closing(Names()) as names, ExitStack() as turn:
        swaps = list[Swap]()
        try:
            swaps += [_swap(target, parents, names) for target in targets]
            _each(swaps, lambda swap: parents.make(swap.parent))
            _each(swaps, lambda swap: swap.write())
            turn.enter_context(parents.alone())
            _each(swaps, lambda swap: swap.put())
            turn.close()
            with writing(targets[0].change.path):
                parents.sync()
        except BaseException as error:
            lost = _undo(swaps)
            parents.undo()
            if lost and isinstance(error, CallError):
                error.message += f" What was changed could not be put back: {', '.join(lost)}."
                error.args = (error.message,)
            raise
        for swap in swaps:
            swap.finish()
        parents.sweep()


def _swap(target: Target, parents: Parents, names: Names) -> Swap:
    with writing(target.change.path):
        last = target.place.inner.rpartition("/")[2]
        return swap_for(target.change, last, parents.find(target.place), names)


def _each(swaps: Sequence[Swap], step: Callable[[Swap], None]) -> None:
    """What is not there any more was there when it was looked at."""
    for swap in swaps:
        with writing(swap.path):
            try:
                step(swap)
            except FileNotFoundError:
                raise unwritten(errno.ESTALE, swap.path) from None


def _undo(swaps: Sequence[Swap]) -> list[str]:
    """What could not be undone, with the name that the content from before has now."""
    lost = []
    for swap in reversed(swaps):
        try:
            swap.undo()
        except OSError:
            kept = swap.keep()
            lost.append(printable(f"{swap.path} is kept beside it as {kept}" if kept else swap.path))
    return lost
