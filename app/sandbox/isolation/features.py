"""Detects kernel features, by trying them, and programs of this machine."""

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
from app.sandbox.syscalls import call, libc

LANDLOCK_CREATE_RULESET = 444  # the same on every architecture
LANDLOCK_VERSION_FLAG = 1
SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_GET_ACTION_AVAIL = 2
SECCOMP_RET_ERRNO = 0x00050000
PR_GET_SECCOMP = 21
TIMEOUT_SECONDS = 10.0

# Run in a child, because a namespace cannot be left again, and only a single-threaded process can enter one.
# The second step needs the capabilities of the first; some systems allow the first and deny the second.
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
    """Whether the kernel has a feature, with a detail for the operator."""

    available: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program on PATH, with the first line of its `--version`."""

    path: str
    version: str


def openat2() -> Feature:
    if opener.is_supported():
        return Feature(True, "paths are opened race-free")
    return Feature(False, "paths are resolved step by step, and symlinks in a workspace are refused")


def landlock() -> Feature:
    abi = landlock_abi()
    return Feature(abi > 0, f"ABI {abi}" if abi else "not in this kernel, or switched off")


def landlock_abi() -> int:
    """The Landlock ABI version of this kernel; 0 without Landlock."""
    return max(call(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION_FLAG), 0)


def seccomp() -> Feature:
    number = SECCOMP.get(platform.machine())
    if number is None:
        return Feature(False, f"not known on {platform.machine()}")
    action = ctypes.c_uint32(SECCOMP_RET_ERRNO)
    result = call(number, SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action))
    if result < 0:
        return Feature(False, os.strerror(-result))
    is_filtered = libc().prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2
    return Feature(True, "filters work" + ("; this process is under one already" if is_filtered else ""))


def user_namespaces() -> Feature:
    """Whether a process can enter one, and has capabilities inside."""
    tried = _run([sys.executable, "-I", "-S", "-c", UNSHARE])
    if tried is None:
        return Feature(False, "could not be tried")
    if tried.returncode == 0:
        return Feature(True, "can be entered")
    step, _, reason = tried.stdout.strip().partition(" ")
    if step == "2":
        return Feature(False, f"can be entered, but without capabilities inside: {reason}")
    return Feature(False, f"cannot be entered: {reason or tried.stdout[-200:]}")


def find_program(name: str) -> Program | None:
    """The program on PATH with its version; None when there is none."""
    path = shutil.which(name)
    if path is None:
        return None
    done = _run([path, "--version"])
    lines = done.stdout.strip().splitlines() if done else []
    return Program(path, lines[0][:200] if lines else "version unknown")


def supported_options(path: str, options: Iterable[str]) -> tuple[str, ...]:
    """Those of these options that are in the program's `--help`."""
    done = _run([path, "--help"])
    words = done.stdout.split() if done else []
    return tuple(option for option in options if option in words)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command with a minimal environment; None when it does not end in time."""
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
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its children, which may hold the pipe open
            return None
    return subprocess.CompletedProcess(command, process.returncode, output)
