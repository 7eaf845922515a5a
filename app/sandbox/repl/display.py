"""The desk: what a cell shows besides what it prints, its last value and its images."""

import base64
import importlib.util
import io
import sys
from types import ModuleType
from typing import Any

from app.sandbox.repl.channel import send
from app.sandbox.repl.tracebacks import shortened

MOST_IMAGES = 16
MOST_IMAGE = 4 * 1024 * 1024
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
FIGURES = "toolcrib_figures"


class DisplayHooks:
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


def open_desk() -> DisplayHooks:
    """One that gets the figures of matplotlib, should that ever be imported."""
    desk = DisplayHooks()
    figures = Figures(FIGURES)
    figures.desk = desk
    sys.modules[FIGURES] = figures
    sys.meta_path.insert(0, MatplotlibWatch())
    return desk


class Figures(ModuleType):
    """A backend for matplotlib that shows figures on the desk. It is made when matplotlib asks for it."""

    desk: DisplayHooks

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


def show_figures(desk: DisplayHooks) -> None:
    """All that are open, which closes them."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return
    for manager in helpers.Gcf.get_all_fig_managers():
        show_figure(manager.canvas.figure, desk)
    helpers.Gcf.destroy_all()


def show_figure(figure: Any, desk: DisplayHooks) -> None:
    for smaller in (1, 2, 4, 8):
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=figure.dpi / smaller, bbox_inches="tight")
        if drawn.tell() <= MOST_IMAGE:
            break
    desk.image(drawn.getvalue(), "image/png")


def is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def show_open_figure(figure: Any, desk: DisplayHooks) -> str:
    """A figure as a value: shown once, also when it is among the open ones."""
    show_figure(figure, desk)
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(figure)
    return str(figure)
