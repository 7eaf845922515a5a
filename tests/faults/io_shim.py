"""The disk that fails on demand: `ioshim.c`, built and steered from here."""

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("ioshim.c")
LAYOUT = "=6q"

WRITE, SYNC, TRUNCATE = 1, 2, 4
ALL = WRITE | SYNC | TRUNCATE
LASTING = 1 << 40


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


class Shim:
    """What is preloaded into a service, and the control it looks at before each operation."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "ioshim.so"
        self._control = folder / "control"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        self._control.write_bytes(struct.pack(LAYOUT, *[0] * 6))
        with self._control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "IOSHIM_CONTROL": str(self._control)}

    def arm(self, kinds: int, first: int, times: int = 1, number: int = errno.EIO) -> None:
        """Let the operations of these kinds fail from the `first` one on, counted from now."""
        self.release()
        struct.pack_into(LAYOUT, self._memory, 0, 0, first, times, number, 0, 0)
        struct.pack_into("=q", self._memory, 0, kinds)

    def release(self) -> None:
        """From now on the disk is well; the counts stay."""
        struct.pack_into("=q", self._memory, 0, 0)

    @property
    def seen(self) -> int:
        return int(struct.unpack(LAYOUT, self._memory[:])[4])

    @property
    def failed(self) -> int:
        return int(struct.unpack(LAYOUT, self._memory[:])[5])

    def close(self) -> None:
        self._memory.close()
