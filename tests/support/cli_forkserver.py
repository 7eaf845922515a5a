"""Runs `toolcrib` commands in processes forked from one that has imported the service, as an import takes a second."""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

MAX_REQUEST_BYTES = 1 << 17
NUMBER_BYTES = 8


class ForkServer:
    """The process to fork from. Each command gets its own folder, environment and standard streams."""

    def __init__(self, root: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cli_forkserver", str(theirs.fileno())],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self.close)

    def run(
        self, args: list[str], folder: Path, env: dict[str, str], stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            request = {"args": args, "folder": str(folder), "env": env}
            code = self._run(request, [given.fileno(), out.fileno(), err.fileno()], timeout)
            return subprocess.CompletedProcess(args, code, _text(out), _text(err))

    def _run(self, request: dict[str, Any], streams: list[int], timeout: float) -> int:
        status, theirs = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, theirs])
            os.close(theirs)
            pid = _read_number(status)
            if not select.select([status], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(request["args"], timeout)
            return _read_number(status)
        finally:
            os.close(status)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def fork_server(root: Path) -> ForkServer:
    return ForkServer(root)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


def _read_number(fd: int) -> int:
    return int.from_bytes(os.read(fd, NUMBER_BYTES), signed=True)


def _write_number(fd: int, number: int) -> None:
    os.write(fd, number.to_bytes(NUMBER_BYTES, signed=True))


def serve(requests: socket.socket) -> None:
    """Fork for each request until the tests close the socket."""
    import app.main
    import app.server  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes that wait for a command
    gc.collect()
    gc.freeze()  # so that the children leave alone, and uncopied, what they share
    while True:
        request, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _wait_for_command(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _wait_for_command(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """The parent of a command: writes its pid, then its exit code."""
    *streams, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run_command(request, streams)
    _write_number(status, pid)
    _write_number(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run_command(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """What `python -m app` does with these arguments."""
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["app", *request["args"]]
    code = 1
    try:
        runpy.run_module("app", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the end of a process: what remains is to say why
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
