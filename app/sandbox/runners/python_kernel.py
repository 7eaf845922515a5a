"""A Python interpreter that keeps what was defined from one cell to the next.

Lines of JSON come in by descriptor 3 and go out by descriptor 4:

    in   {"run": code, "mark": text}        run a cell; afterwards `mark` is written to stdout and stderr
         {"stop": true}                     stop it
    out  {"ready": version, "shell": name}  once
         {"image": base64, "mime": type}    a cell shows an image
         {"done": mark, "value": text?, "error": {summary, text}?}

With IPython cells have its magics and its display; without, or with TOOLCRIB_PLAIN_PYTHON set, they are plain Python
with `await` at the top and a small `display`. Nothing is kept outside the temporary folder.
It is started by its text, not by its path, which those behind walls may not be able to read.
"""

import ast
import asyncio
import base64
import builtins
import fcntl
import importlib.util
import inspect
import io
import json
import linecache
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any

WAY_IN, WAY_OUT = 3, 4
MOST_IMAGES = 16
MOST_IMAGE = 4 * 1024 * 1024
MOST_SHOWN = 100_000
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FIGURES = "toolcrib_figures"
OURS: tuple[str, ...] = (__file__,)
NO_INPUT = "input() is not possible here, as nobody can type; put the value into the code"
Failure = BaseException | None


def send(message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(WAY_OUT, data) :]


class Desk:
    """What a cell shows besides what it prints: its last value and its images."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.value: str | None = None
        self.images = 0

    def image(self, data: bytes | str, mime: str) -> None:
        """Bytes, or their base64 as some libraries have it."""
        self.images += 1
        text = data.replace("\n", "") if isinstance(data, str) else base64.b64encode(data).decode()
        if len(text) > MOST_IMAGE * 4 // 3:
            sys.stderr.write(f"[an image of more than {MOST_IMAGE:,} bytes is not shown; make it smaller]\n")
        elif self.images == MOST_IMAGES + 1:
            sys.stderr.write(f"[more than {MOST_IMAGES} images; the others are not shown]\n")
        elif self.images <= MOST_IMAGES:
            send({"image": text, "mime": mime})

    def bundle(self, data: dict[str, Any], *, is_value: bool) -> None:
        """One thing in several forms: the image if there is one, and the text unless it only stands for the image."""
        mime = next((mime for mime in IMAGES if data.get(mime)), None)
        if mime is not None:
            self.image(data[mime], mime)
        text = data.get("text/plain")
        if text is None or (mime is not None and not is_value):
            return
        if is_value:
            self.value = shortened(str(text))
        else:
            sys.stdout.write(f"{text}\n")


def shortened(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[:MOST_SHOWN]}… {len(text) - MOST_SHOWN} more characters"


class Figures(ModuleType):
    """A backend for matplotlib that shows figures on the desk. It is made when matplotlib asks for it."""

    desk: Desk

    def __getattr__(self, name: str) -> Any:
        if name not in ("FigureCanvas", "FigureManager"):
            raise AttributeError(name)
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        desk = self.desk

        class FigureManager(FigureManagerBase):
            @classmethod
            def pyplot_show(cls, *, block: bool | None = None) -> None:
                show_figures(desk)

        class FigureCanvas(FigureCanvasAgg):
            manager_class = FigureManager

        self.FigureManager, self.FigureCanvas = FigureManager, FigureCanvas
        return getattr(self, name)


class MatplotlibWatch:
    """Makes matplotlib use our backend from its first moment. An environment variable would reach child processes."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "matplotlib":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.rcParams["backend"] = f"module://{FIGURES}"

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def show_figures(desk: Desk) -> None:
    """All that are open, which closes them."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    for manager in helpers.Gcf.get_all_fig_managers():
        show_figure(manager.canvas.figure, desk)
    helpers.Gcf.destroy_all()


def show_figure(figure: Any, desk: Desk) -> None:
    for smaller in (1, 2, 4, 8):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=figure.dpi / smaller, bbox_inches="tight")
        if drawn.tell() <= MOST_IMAGE:
            break
    desk.image(drawn.getvalue(), "image/png")


def is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def show_open_figure(figure: Any, desk: Desk) -> str:
    """A figure as a value: shown once, also when it is among the open ones."""
    show_figure(figure, desk)
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(figure)
    return str(figure)


class PlainShell:
    """Cells without IPython."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        module = ModuleType("__main__")
        module.__dict__.update(__builtins__=builtins, display=self.display)
        sys.modules["__main__"] = module
        self._names = module.__dict__

    def run(self, code: str) -> Failure:
        self._count += 1
        name = f"<cell {self._count}>"
        linecache.cache[name] = (len(code), None, f"{code}\n".splitlines(keepends=True), name)
        try:
            tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            self._execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last is not None:
                body = ast.Expression(last.value)
                self._show(self._execute(compile(body, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))
        except BaseException as failure:  # noqa: BLE001
            return failure
        return None

    def _execute(self, code: CodeType) -> Any:
        value = eval(code, self._names)
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(value)

    def _show(self, value: object) -> None:
        if value is not None:
            self._names["_"] = value
            self._desk.bundle(self._forms(value), is_value=True)

    def display(self, *values: object) -> None:
        for value in values:
            self._desk.bundle(self._forms(value), is_value=False)

    def _forms(self, value: object) -> dict[str, Any]:
        if is_figure(value):
            return {"text/plain": show_open_figure(value, self._desk)}
        forms: dict[str, Any] = {"text/plain": repr(value)}
        for mime, method in (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_")):
            if not isinstance(value, type) and callable(draw := getattr(value, method, None)):
                forms[mime] = draw()
        return forms


class IPythonShell:
    """Cells of IPython, without its history, its prompts and its colors."""

    def __init__(self, desk: Desk) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        global OURS
        OURS = (__file__, os.path.dirname(os.path.dirname(inspect.getfile(InteractiveShell))) + os.sep)
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.cache_size = 20
        shell: Any = InteractiveShell.instance(config=config, ipython_dir=tempfile.mkdtemp(prefix="ipython-"))
        shell.system = shell.system_raw  # the other way needs a terminal, which there may be none of
        shell.compile.get_code_name = lambda raw, code, number: f"<cell {number}>"
        shell.showtraceback, shell.showsyntaxerror = show_caught, nothing
        shell.enable_gui, shell.enable_matplotlib = nothing, lambda gui=None: ("inline", "inline")
        shell.ask_exit = leave
        self._shell = shell
        self._show_on(desk)
        for warning in ("To exit: use", "Output cache limit"):  # which it says with its own path
            warnings.filterwarnings("ignore", message=warning)

    def _show_on(self, desk: Desk) -> None:
        hook, publisher = self._shell.displayhook, self._shell.display_pub
        hook.write_output_prompt = nothing
        hook.finish_displayhook = lambda: setattr(hook, "_is_active", False)
        hook.write_format_data = lambda data, metadata=None: desk.bundle(data, is_value=True)
        publisher.publish = lambda data, *args, **more: desk.bundle(data, is_value=False)
        publisher.clear_output = nothing
        self._shell.display_formatter.formatters["text/plain"].for_type_by_name(
            "matplotlib.figure", "Figure", lambda figure, printer, cycle: printer.text(show_open_figure(figure, desk))
        )

    def run(self, code: str) -> Failure:
        ran = self._shell.run_cell(code, store_history=True)
        failure: Failure = ran.error_before_exec or ran.error_in_exec
        return self._in_full(code, failure) if isinstance(failure, SyntaxError) else failure

    def _in_full(self, code: str, failure: SyntaxError) -> SyntaxError:
        """IPython takes an unfinished cell for one that goes on, and only Python says what is wrong with it."""
        try:
            compile(self._shell.transform_cell(code), failure.filename or "<cell>", "exec", dont_inherit=True)
        except SyntaxError as better:
            return better if failure.msg == "incomplete input" else failure
        return failure


def show_caught(caught: Any = None, *args: Any, **more: Any) -> None:
    """What a cell raised is told at its end; what was caught on the way to show a value, now."""
    if caught is not None:
        sys.stderr.write(failed(caught[1])["text"])


def nothing(*args: Any, **more: Any) -> None:
    """What IPython does at a terminal, and not here."""


def leave() -> None:
    raise SystemExit(0)


class Channel:
    """Our way in. What comes while a cell runs is a wish to stop it, and the kernel of the system tells us at once.

    A signal from outside would do for us alone, but not where a process stands between that leads our group.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self.is_busy = False
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGIO, self._look)
        fcntl.fcntl(WAY_IN, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(WAY_IN, fcntl.F_SETFL, fcntl.fcntl(WAY_IN, fcntl.F_GETFL) | os.O_ASYNC)

    def requests(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\n" not in self._kept:
                if not self._read():
                    return
            line, _, rest = self._kept.partition(b"\n")
            self._kept = rest
            if "run" in (request := json.loads(line)):
                yield request  # a wish to stop that came too late is none

    def _read(self) -> bool:
        data = os.read(WAY_IN, 65536)
        self._kept += data
        return bool(data)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if not self.is_busy:
            return
        while select.select([WAY_IN], [], [], 0)[0]:
            if not self._read():
                os._exit(0)  # nobody is there any more
        if b"\n" in self._kept:
            self._kept.clear()
            self._stop(number, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_busy:
            raise KeyboardInterrupt


def failed(failure: BaseException) -> dict[str, str]:
    told = traceback.TracebackException(type(failure), failure, failure.__traceback__, compact=True)
    forget_ours(told)
    text = "".join(told.format())
    *_, summary = [line for line in told.format_exception_only() if not line.startswith(" ")]
    return {"summary": shortened(summary.strip()), "text": shortened(text)}


def forget_ours(told: traceback.TracebackException | None) -> None:
    """Leave out what leads to a cell and the frames of our own, also in what led to the failure and in its parts."""
    if told is None:
        return
    places = [frame.filename for frame in told.stack]
    first = next((number for number, place in enumerate(places) if place.startswith("<cell ")), 0)
    told.stack[:] = [frame for frame in told.stack[first:] if not frame.filename.startswith(OURS)]
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        forget_ours(other)


def answer(work: Callable[[], Failure], desk: Desk, channel: Channel) -> dict[str, Any]:
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


def open_shell(desk: Desk) -> PlainShell | IPythonShell:
    if os.environ.pop("TOOLCRIB_PLAIN_PYTHON", None) or importlib.util.find_spec("IPython") is None:
        return PlainShell(desk)
    return IPythonShell(desk)


def main() -> None:
    for fd in (WAY_IN, WAY_OUT):
        os.set_inheritable(fd, False)
    sys.path[0] = ""
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.meta_path.insert(0, MatplotlibWatch())
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), "matplotlib"))
    builtins.input = no_input
    desk = Desk()
    figures = Figures(FIGURES)
    figures.desk = desk
    sys.modules[FIGURES] = figures
    channel, shell, me = Channel(), open_shell(desk), os.getpid()
    send({"ready": sys.version.split()[0], "shell": type(shell).__name__})
    for request in channel.requests():
        done = answer(partial(shell.run, request["run"]), desk, channel)
        if os.getpid() != me:
            os._exit(0)  # a copy of us that a cell made has no business with the channel
        close_cell(request["mark"])
        send({"done": request["mark"]} | done)


if __name__ == "__main__":
    main()
