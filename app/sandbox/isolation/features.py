"""What this machine gives us: features of its kernel, tried and not guessed, and programs."""

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from app.sandbox.files import openat2 as opener
from app.sandbox.syscalls import call as call
from app.sandbox.syscalls import libc as libc

LANDLOCK_CREATE_RULESET = 444  # the same on every architecture
LANDLOCK_VERSION_FLAG = 1
SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_GET_ACTION_AVAIL = 2
SECCOMP_RET_ERRNO = 0x00050000
PR_GET_SECCOMP = 21
SECONDS = 10.0

# A process of its own, because a namespace is entered for good, and only by a process with a single thread.
# The second step needs the rights that the first one gives; some systems allow the one and deny the other.
UNSHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for step, flag in enumerate((0x10000000, 0x00020000), 1):
    if libc.unshare(flag):
        print(step, os.strerror(ctypes.get_errno()))
        sys.exit(1)
"""


@dataclass(frozen=True, slots=True)
class Feature:
    """Whether the kernel has it, and what there is to say about it."""

    available: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program found on the path, with the first line it says about its version."""

    path: str
    version: str


def openat2() -> Feature:
    if opener.is_supported():
        return Feature(True, "paths are opened race-free")
    return Feature(False, "paths are walked step by step, and symlinks in a workspace are refused")


def landlock() -> Feature:
    abi = landlock_abi()
    return Feature(abi > 0, f"ABI {abi}" if abi else "not in this kernel, or switched off")


def landlock_abi() -> int:
    """The newest Landlock interface this kernel speaks; 0 when it has none."""
    answer = call(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION_FLAG)
    return max(answer, 0)


def seccomp() -> Feature:
    number = SECCOMP.get(platform.machine())
    if number is None:
        return Feature(False, f"not known on {platform.machine()}")
    action = ctypes.c_uint32(SECCOMP_RET_ERRNO)
    answer = call(number, SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action))
    if answer < 0:
        return Feature(False, os.strerror(-answer))
    filtered = libc().prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2
    return Feature(True, "filters work" + ("; this process is under one already" if filtered else ""))


def user_namespaces() -> Feature:
    """Whether a process can enter one, and has its rights inside."""
    tried = _run([sys.executable, "-I", "-S", "-c", UNSHARE])
    if tried is None:
        return Feature(False, "could not be tried")
    if tried.returncode == 0:
        return Feature(True, "can be entered")
    step, _, reason = tried.stdout.strip().partition(" ")
    if step == "2":
        return Feature(False, f"can be entered, but without rights inside: {reason}")
    return Feature(False, f"cannot be entered: {reason or tried.stdout[-200:]}")


def find_program(name: str) -> Program | None:
    """The program on the path, asked for its version; None when there is none."""
    path = shutil.which(name)
    if path is None:
        return None
    said = _run([path, "--version"])
    lines = said.stdout.strip().splitlines() if said else []
    return Program(path, lines[0][:200] if lines else "does not say its version")


def options(path: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of these options that a program says it has."""
    said = _run([path, "--help"])
    words = said.stdout.split() if said else []
    return tuple(option for option in wanted if option in words)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """A short look, with an environment that cannot change what is seen; None when it does not end in time."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except OSError:
        return None
    with process:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, who may hold the pipe
            return None
    return subprocess.CompletedProcess(command, process.returncode, said)
