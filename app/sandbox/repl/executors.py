"""Execute cells, with IPython or without."""

import ast
import asyncio
import builtins
import importlib.util
import inspect
import linecache
import os
import sys
import tempfile
import warnings
from types import CodeType, ModuleType
from typing import Any

from app.sandbox.repl.display import HIDDEN_FILES, DisplayHooks, describe_error, is_figure, show_open_figure

PLAIN = "TOOLCRIB_PLAIN_PYTHON"
Failure = BaseException | None


def open_executor(display: DisplayHooks) -> "PlainExecutor | IPythonExecutor":
    if os.environ.pop(PLAIN, None) or importlib.util.find_spec("IPython") is None:
        return PlainExecutor(display)
    return IPythonExecutor(display)


class PlainExecutor:
    """Cells without IPython."""

    def __init__(self, display: DisplayHooks) -> None:
        self._display = display
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
            self._display.bundle(self._formats(value), is_value=True)

    def display(self, *values: object) -> None:
        for value in values:
            self._display.bundle(self._formats(value), is_value=False)

    def _formats(self, value: object) -> dict[str, Any]:
        if is_figure(value):
            return {"text/plain": show_open_figure(value, self._display)}
        formats: dict[str, Any] = {"text/plain": repr(value)}
        for mime, method in (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_")):
            if not isinstance(value, type) and callable(draw := getattr(value, method, None)):
                formats[mime] = draw()
        return formats


class IPythonExecutor:
    """Cells of IPython, without its history, its prompts and its colors."""

    def __init__(self, display: DisplayHooks) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        HIDDEN_FILES.append(os.path.dirname(os.path.dirname(inspect.getfile(InteractiveShell))) + os.sep)
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.cache_size = 20
        shell: Any = InteractiveShell.instance(config=config, ipython_dir=tempfile.mkdtemp(prefix="ipython-"))
        shell.system = shell.system_raw  # the default needs a terminal
        shell.compile.get_code_name = lambda raw, code, number: f"<cell {number}>"
        shell.showtraceback, shell.showsyntaxerror = show_caught, nothing
        shell.enable_gui, shell.enable_matplotlib = nothing, lambda gui=None: ("inline", "inline")
        shell.ask_exit = leave
        self._shell = shell
        self._install_hooks(display)
        for warning in ("To exit: use", "Output cache limit"):  # they contain paths of IPython
            warnings.filterwarnings("ignore", message=warning)

    def _install_hooks(self, display: DisplayHooks) -> None:
        hook, publisher = self._shell.displayhook, self._shell.display_pub
        hook.write_output_prompt = nothing
        hook.finish_displayhook = lambda: setattr(hook, "_is_active", False)
        hook.write_format_data = lambda data, metadata=None: display.bundle(data, is_value=True)
        publisher.publish = lambda data, *args, **kwargs: display.bundle(data, is_value=False)
        publisher.clear_output = nothing
        self._shell.display_formatter.formatters["text/plain"].for_type_by_name(
            "matplotlib.figure",
            "Figure",
            lambda figure, printer, cycle: printer.text(show_open_figure(figure, display)),
        )

    def run(self, code: str) -> Failure:
        result = self._shell.run_cell(code, store_history=True)
        failure: Failure = result.error_before_exec or result.error_in_exec
        return self._precise_error(code, failure) if isinstance(failure, SyntaxError) else failure

    def _precise_error(self, code: str, failure: SyntaxError) -> SyntaxError:
        """IPython reports an unfinished cell as incomplete input; Python says what is wrong with it."""
        try:
            compile(self._shell.transform_cell(code), failure.filename or "<cell>", "exec", dont_inherit=True)
        except SyntaxError as better:
            return better if failure.msg == "incomplete input" else failure
        return failure


def show_caught(caught: Any = None, *args: Any, **kwargs: Any) -> None:
    """The error of a cell is reported at its end; one raised while a value is displayed is written now."""
    if caught is not None:
        sys.stderr.write(describe_error(caught[1])["text"])


def nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces what IPython does only at a terminal."""


def leave() -> None:
    raise SystemExit(0)
