"""The machine a benchmark ran on, as far as it matters for its figures."""

import os
import platform
import sqlite3
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

MEMORY_DISKS = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    processor: str
    kernel: str
    python: str
    sqlite: str
    packages: str
    disk: str
    fsync_ms: float
    load_before: tuple[float, float, float]

    @classmethod
    def look(cls, place: Path) -> "Machine":
        disk = disk_of(place)
        if disk in MEMORY_DISKS:
            raise SystemExit(f"{place} is on {disk}, where fsync costs nothing; name a real disk with --disk")
        names = ("fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "httptools", "orjson")
        return cls(
            cores=len(os.sched_getaffinity(0)),
            processor=processor(),
            kernel=platform.release(),
            python=sys.version.split()[0],
            sqlite=sqlite3.sqlite_version,
            packages=", ".join(f"{name} {version(name)}" for name in names),
            disk=disk,
            fsync_ms=fsync_ms(place),
            load_before=os.getloadavg(),
        )


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def disk_of(place: Path) -> str:
    """The type of the file system that holds a path: the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(point), kind) for point, kind in mounts if place.resolve().is_relative_to(point)]
    return max(above)[1]


def fsync_ms(place: Path) -> float:
    """What it costs here to bring 4 KiB to the disk: the floor under every commit."""
    times = []
    fd = os.open(place / "probe", os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range(200):
        began = time.perf_counter()
        os.write(fd, bytes(4096))
        os.fdatasync(fd)
        times.append((time.perf_counter() - began) * 1000)
    os.close(fd)
    return median(times)
