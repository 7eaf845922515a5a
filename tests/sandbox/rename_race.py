"""Somebody who never stops turning names into others."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXCHANGE = 2
HANG = 20


def last(seconds: float, enough: Callable[[], bool]) -> None:
    """Let it go on for so long; on a slow machine, until enough has happened."""
    end = time.monotonic() + seconds
    while time.monotonic() < end or (not enough() and time.monotonic() < end + HANG):
        time.sleep(0.01)


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[list[int]]:
    """Two names are exchanged all the time; how often."""
    libc = ctypes.CDLL(None)
    with repeating(lambda: libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE) == 0) as times:
        yield times


@contextmanager
def repeating(deed: Callable[[], bool]) -> Iterator[list[int]]:
    """Something is done all the time in another thread; how often it went well."""
    stop, times, failures = threading.Event(), [0], list[BaseException]()

    def work() -> None:
        try:
            while not stop.is_set():
                times[0] += deed()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
