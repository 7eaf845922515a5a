"""A Python interpreter that keeps what was defined from one cell to the next.

Lines of JSON come in by descriptor 3 and go out by descriptor 4:

    in   {"run": code, "mark": text}        run a cell; afterwards `mark` is written to stdout and stderr
         {"stop": true}                     stop it
    out  {"ready": version, "shell": name}  once
         {"image": base64, "mime": type}    a cell shows an image
         {"done": mark, "value": text?, "error": {summary, text}?}

With IPython cells have its magics and its display; without, or with TOOLCRIB_PLAIN_PYTHON set, they are plain Python
with top-level `await` and a small `display`. It writes only to the temporary folder.
Its modules are passed as text, because their files may be out of reach in the sandbox.
"""

import builtins
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from app.sandbox.repl.channel import INPUT_FD, OUTPUT_FD, Channel, send
from app.sandbox.repl.display import DisplayHooks, describe_error, open_display, show_figures
from app.sandbox.repl.executors import Failure, open_executor

NO_INPUT = "input() is not possible here, as there is no terminal; put the value into the code"


def run_cell(execute: Callable[[], Failure], display: DisplayHooks, channel: Channel) -> dict[str, Any]:
    """Run a cell; its value and its error."""
    display.clear()
    channel.is_busy = True
    try:
        failure = execute()
        show_figures(display)
    except BaseException as late:  # noqa: BLE001
        failure = late
    finally:
        channel.is_busy = False
    done: dict[str, Any] = {}
    if display.value is not None:
        done["value"] = display.value
    if failure is not None and not (isinstance(failure, SystemExit) and failure.code in (None, 0)):
        done["error"] = describe_error(failure)
    return done


def close_cell(mark: str) -> None:
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
            os.write(fd, mark.encode())
        except (OSError, ValueError):
            continue  # the cell closed it


def no_input(prompt: object = "") -> str:
    raise EOFError(NO_INPUT)


def main() -> None:
    for fd in (INPUT_FD, OUTPUT_FD):
        os.set_inheritable(fd, False)
    sys.path[0] = ""
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), "matplotlib"))
    builtins.input = no_input
    display, channel, pid = open_display(), Channel(), os.getpid()
    executor = open_executor(display)
    send({"ready": sys.version.split()[0], "shell": type(executor).__name__})
    for request in channel.requests():
        done = run_cell(partial(executor.run, request["run"]), display, channel)
        if os.getpid() != pid:
            os._exit(0)  # a fork that the cell made must not use the channel
        close_cell(request["mark"])
        send({"done": request["mark"]} | done)
