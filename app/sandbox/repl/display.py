"""What a cell shows besides its output: its last value, its images and the traceback of an error."""

import base64
import importlib.util
import io
import sys
import traceback
from types import ModuleType
from typing import Any

from app.sandbox.repl.channel import send

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 4 * 1024 * 1024
MAX_SHOWN_CHARS = 100_000
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FIGURES = "toolcrib_figures"
HIDDEN_FILES = [__file__]
"""Prefixes of the files whose frames are left out of tracebacks."""


class DisplayHooks:
    """Collects the last value of a cell, and sends its images."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.value: str | None = None
        self.images = 0

    def image(self, data: bytes | str, mime: str) -> None:
        """Bytes, or base64 text as some libraries return it."""
        self.images += 1
        text = data.replace("\n", "") if isinstance(data, str) else base64.b64encode(data).decode()
        if len(text) > MAX_IMAGE_BYTES * 4 // 3:
            sys.stderr.write(f"[an image of more than {MAX_IMAGE_BYTES:,} bytes is not shown; make it smaller]\n")
        elif self.images == MAX_IMAGES + 1:
            sys.stderr.write(f"[more than {MAX_IMAGES} images; the others are not shown]\n")
        elif self.images <= MAX_IMAGES:
            send({"image": text, "mime": mime})

    def bundle(self, data: dict[str, Any], *, is_value: bool) -> None:
        """Show one value in several formats: the image if there is one, and the text unless it only names it."""
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


def open_display() -> DisplayHooks:
    """Also shows the figures of matplotlib, if that is imported."""
    display = DisplayHooks()
    figures = Figures(FIGURES)
    figures.display = display
    sys.modules[FIGURES] = figures
    sys.meta_path.insert(0, MatplotlibWatch())
    return display


class Figures(ModuleType):
    """A matplotlib backend that shows figures. It is created when matplotlib imports it."""

    display: DisplayHooks

    def __getattr__(self, name: str) -> Any:
        if name not in ("FigureCanvas", "FigureManager"):
            raise AttributeError(name)
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        display = self.display

        class FigureManager(FigureManagerBase):
            @classmethod
            def pyplot_show(cls, *, block: bool | None = None) -> None:
                show_figures(display)

        class FigureCanvas(FigureCanvasAgg):
            manager_class = FigureManager

        self.FigureManager, self.FigureCanvas = FigureManager, FigureCanvas
        return getattr(self, name)


class MatplotlibWatch:
    """Sets our backend when matplotlib is imported. An environment variable would also affect child processes."""

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


def show_figures(display: DisplayHooks) -> None:
    """Show and close all open figures."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    for manager in helpers.Gcf.get_all_fig_managers():
        show_figure(manager.canvas.figure, display)
    helpers.Gcf.destroy_all()


def show_figure(figure: Any, display: DisplayHooks) -> None:
    for divisor in (1, 2, 4, 8):
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=figure.dpi / divisor, bbox_inches="tight")
        if png.tell() <= MAX_IMAGE_BYTES:
            break
    display.image(png.getvalue(), "image/png")


def is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def show_open_figure(figure: Any, display: DisplayHooks) -> str:
    """Show a figure that is a value, and close it, so that it is not shown twice."""
    show_figure(figure, display)
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(figure)
    return str(figure)


def describe_error(failure: BaseException) -> dict[str, str]:
    """The summary and the traceback of an error, as far as it is about the code of the model."""
    trace = traceback.TracebackException(type(failure), failure, failure.__traceback__, compact=True)
    _hide_own_frames(trace)
    text = "".join(trace.format())
    *_, summary = [line for line in trace.format_exception_only() if not line.startswith(" ")]
    return {"summary": shortened(summary.strip()), "text": shortened(text)}


def _hide_own_frames(trace: traceback.TracebackException | None) -> None:
    """Leave out the frames before the cell and our own, also in causes and exception groups."""
    if trace is None:
        return
    files = [frame.filename for frame in trace.stack]
    first = next((number for number, file in enumerate(files) if file.startswith("<cell ")), 0)
    trace.stack[:] = [frame for frame in trace.stack[first:] if not frame.filename.startswith(tuple(HIDDEN_FILES))]
    for other in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        _hide_own_frames(other)


def shortened(text: str) -> str:
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}… {len(text) - MAX_SHOWN_CHARS} more characters"
