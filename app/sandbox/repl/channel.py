"""The channel of a kernel: lines of JSON, in on descriptor 3 and out on descriptor 4."""

import fcntl
import json
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

INPUT_FD, OUTPUT_FD = 3, 4


class Channel:
    """Reads requests. A message while a cell runs is a request to stop it; SIGIO reports it at once.

    A signal from the service would not arrive where another process, such as bwrap, leads the process group.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_busy = False
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGIO, self._on_readable)
        fcntl.fcntl(INPUT_FD, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(INPUT_FD, fcntl.F_SETFL, fcntl.fcntl(INPUT_FD, fcntl.F_GETFL) | os.O_ASYNC)

    def requests(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\n" not in self._buffer:
                if not self._read():
                    return
            line, _, rest = self._buffer.partition(b"\n")
            self._buffer = rest
            if "run" in (request := json.loads(line)):
                yield request  # a request to stop that came too late is ignored

    def _read(self) -> bool:
        data = os.read(INPUT_FD, 65536)
        self._buffer += data
        return bool(data)

    def _on_readable(self, number: int, frame: FrameType | None) -> None:
        if not self.is_busy:
            return
        while select.select([INPUT_FD], [], [], 0)[0]:
            if not self._read():
                os._exit(0)  # the service is gone
        if b"\n" in self._buffer:
            self._buffer.clear()
            self._stop(number, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_busy:
            raise KeyboardInterrupt


def send(message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(OUTPUT_FD, data) :]
