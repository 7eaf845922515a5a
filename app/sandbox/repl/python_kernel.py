"""A Python interpreter that keeps what was defined from one cell to the next.

Lines of JSON come in by descriptor 3 and go out by descriptor 4:

    in   {"run": code, "mark": text}        run a cell; afterwards `mark` is written to stdout and stderr
         {"stop": true}                     stop it
    out  {"ready": version, "shell": name}  once
         {"image": base64, "mime": type}    a cell shows an image
         {"done": mark, "value": text?, "error": {summary, text}?}

With IPython cells have its magics and its display; without, or with TOOLCRIB_PLAIN_PYTHON set, they are plain Python
with `await` at the top and a small `display`. Nothing is kept outside the temporary folder.
It is started by the texts of its modules, as their paths may be out of reach behind walls.
"""

import builtins
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from app.sandbox.repl.channel import WAY_IN, WAY_OUT, Channel, send
from app.sandbox.repl.display import DisplayHooks, open_desk, show_figures
from app.sandbox.repl.executors import Failure, open_shell
from app.sandbox.repl.tracebacks import failed

NO_INPUT = "input() is not possible here, as nobody can type; put the value into the code"


def answer(work: Callable[[], Failure], desk: DisplayHooks, channel: Channel) -> dict[str, Any]:
    """What there is to say of a cell when it has run."""
    desk.clear()
    channel.is_busy = True
    try:
        failure = work()
        show_figures(desk)
    except BaseException as late:  # noqa: BLE001
        failure = late
    finally:
        channel.is_busy = False
    done: dict[str, Any] = {}
    if desk.value is not None:
        done["value"] = desk.value
    if failure is not None and not (isinstance(failure, SystemExit) and failure.code in (None, 0)):
        done["error"] = failed(failure)
    return done


def close_cell(mark: str) -> None:
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
            os.write(fd, mark.encode())
        except (OSError, ValueError):
            continue  # a cell closed it, and nobody can be told


def no_input(prompt: object = "") -> str:
    raise EOFError(NO_INPUT)


def main() -> None:
    for fd in (WAY_IN, WAY_OUT):
        os.set_inheritable(fd, False)
    sys.path[0] = ""
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), "matplotlib"))
    builtins.input = no_input
    desk, channel, me = open_desk(), Channel(), os.getpid()
    shell = open_shell(desk)
    send({"ready": sys.version.split()[0], "shell": type(shell).__name__})
    for request in channel.requests():
        done = answer(partial(shell.run, request["run"]), desk, channel)
        if os.getpid() != me:
            os._exit(0)  # a copy of us that a cell made has no business with the channel
        close_cell(request["mark"])
        send({"done": request["mark"]} | done)
