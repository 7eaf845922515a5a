"""The authoring face for custom tools and hooks: everything such a file needs is here.

    from pydantic import BaseModel
    from app.sdk import ToolContext, define_tool

    class Args(BaseModel):
        city: str

    @define_tool(tool_id="get_weather", description="Tell the weather of a city.", parameters=Args)
    async def get_weather(args: Args, ctx: ToolContext) -> str:
        return f"Sunny in {args.city}."

What it raises is told to the model in a sentence: an `OSError` with its own
code, a `CallError` as it is, anything else as a bug of the tool.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from errno import EACCES, EEXIST, EIO, EISDIR, ENOENT, ENOTDIR, ETIMEDOUT, errorcode
from functools import update_wrapper
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from app.core.custom_tools import NAME
from app.core.errors import CallError, FileFailed, Internal
from app.core.hooks import hook
from app.core.ports import PathScope
from app.core.results import Attachment, Result
from app.core.rules import Need
from app.core.tools import Audience, Context, Effect, Lane, Ready, Tool, typed

__all__ = ["Audience", "Effect", "Need", "Ready", "ToolContext", "ToolResult", "define_tool", "hook"]

log = logging.getLogger(__name__)

A = TypeVar("A", bound=BaseModel)
Init = Callable[[Audience], Any]

_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: ENOENT,
    PermissionError: EACCES,
    FileExistsError: EEXIST,
    IsADirectoryError: EISDIR,
    NotADirectoryError: ENOTDIR,
    TimeoutError: ETIMEDOUT,
}


@dataclass
class ToolResult:
    """What a tool gives back: `output` is for the model, the rest is for people and frontends.

    An attachment is `{"mime": …, "url": …, "filename": …}`, the url a data URL.
    """

    title: str = ""
    output: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: list[Any] | None = None


class ToolContext(Protocol):
    """A tool's view of the call it serves. `abort` is set when nobody waits for its result any more."""

    session_id: str
    message_id: str | None
    agent: str | None
    call_id: str | None
    abort: asyncio.Event
    extra: dict[str, Any]

    async def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        """Require a permission, from a person if need be; raises when the answer is no."""
        ...

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        """Tell watchers how far it is."""
        ...


class DefinedTool(Generic[A]):
    """A function that became a tool, and can still be called: with arguments as the model sends them, or as typed."""

    def __init__(self, function: Callable[[A, Any], Any], parameters: type[A], tool: Tool) -> None:
        update_wrapper(self, function)
        self.id = tool.name
        self.description = tool.description
        self.parameters = parameters
        self.tool = tool
        self._function = function

    def __call__(self, args: A | dict[str, Any], ctx: ToolContext) -> Any:
        return self._function(self.tool.parse(args) if isinstance(args, dict) else args, ctx)


def define_tool(
    tool_id: str,
    description: str,
    parameters: type[A],
    *,
    title: str | None = None,
    effect: Effect | str = Effect.WRITE,
    needs: Sequence[Need] | Callable[[A, PathScope], list[Need]] | None = None,
    timeout: float = 120.0,
    lane: str = Lane.WORKSPACE,
    init: Init | None = None,
    polls: bool = False,
) -> Callable[[Callable[[A, Any], Any]], DefinedTool[A]]:
    """Make a tool of a function of its arguments and a `ToolContext`, async or plain; a plain one runs in a thread.

    It is a writer unless `effect` says `read`. `needs` are the permissions to judge before it runs; when not said,
    its own name is. `init` answers whether the tool can be used: None if so, else the reason, or a `Ready`.
    """
    if not re.fullmatch(NAME, tool_id):
        raise ValueError(f"{tool_id!r} is no name for a tool: 3 to 64 letters, digits, _ and -, a letter first.")
    named = _needs([Need(tool_id, "*")] if needs is None else needs)

    def define(function: Callable[[A, Any], Any]) -> DefinedTool[A]:
        tool = typed(
            parameters,
            name=tool_id,
            description=description,
            effect=Effect(effect),
            needs=named,
            run=_runner(tool_id, function),
            title=title,
            timeout=timeout,
            lane=lane,
            init=None if init is None else _starter(init),
            polls=polls,
            source="custom",
        )
        return DefinedTool(function, parameters, tool)

    return define


def _needs(given: Sequence[Need] | Callable[[A, PathScope], list[Need]]) -> Callable[[A, PathScope], list[Need]]:
    if callable(given):
        return given
    always = list(given)
    return lambda args, scope: always


def _runner(name: str, function: Callable[[A, Any], Any]) -> Callable[[A, Context], Awaitable[Result]]:
    """The function as the line runs it. Whatever it raises becomes an end that a model can read."""

    async def run(args: A, ctx: Context) -> Result:
        try:
            if inspect.iscoroutinefunction(function):
                return _result(name, await function(args, ctx))
            apart = _FromThread(ctx, asyncio.get_running_loop())
            return _result(name, await ctx.in_thread(lambda is_over: function(args, apart)))
        except CallError:
            raise
        except OSError as error:
            raise _file_failed(error) from error
        except Exception as error:
            log.exception("the tool %s broke", name)
            raise Internal(f"{name} failed: {type(error).__name__}: {error}") from error

    return run


def _result(name: str, given: Any) -> Result:
    match given:
        case Result():
            return given
        case str():
            return Result(output=given)
        case ToolResult():
            attachments = tuple(_attachment(item) for item in given.attachments or ())
            return Result(given.output, given.title, given.metadata, attachments)
        case _:
            raise TypeError(f"a text or a ToolResult is needed, not {type(given).__name__}")


def _attachment(item: Any) -> Attachment:
    return item if isinstance(item, Attachment) else Attachment(**item)


def _file_failed(error: OSError) -> FileFailed:
    """The code is the errno's name. An error that Python code made itself has no errno, but its class tells it."""
    by_class = next((known for kind, known in _NUMBERS.items() if isinstance(error, kind)), EIO)
    number = error.errno if error.errno is not None and error.errno in errorcode else by_class
    path = "" if error.filename is None else str(error.filename)
    said = f"{path}: {error.strerror}." if path and error.strerror else str(error) or type(error).__name__
    return FileFailed(number, path, said)


class _FromThread:
    """The context for a function that runs in a thread: what it tells is handed over to the loop."""

    def __init__(self, ctx: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._ctx = ctx
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        self._loop.call_soon_threadsafe(self._ctx.metadata, title, metadata)

    def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        raise TypeError("only an `async def` tool can ask in flight; a plain one says its `needs`")


def _starter(init: Init) -> Callable[[Audience], Awaitable[Ready]]:
    async def start(audience: Audience) -> Ready:
        if inspect.iscoroutinefunction(init):
            answer = await init(audience)
        else:
            answer = await asyncio.to_thread(init, audience)
        return answer if isinstance(answer, Ready) else Ready(reason=answer)

    return start
