"""The API for files with custom tools and hooks.

    from pydantic import BaseModel
    from app.sdk import ToolContext, define_tool

    class Args(BaseModel):
        city: str

    @define_tool(tool_id="get_weather", description="Tell the weather of a city.", parameters=Args)
    async def get_weather(args: Args, ctx: ToolContext) -> str:
        return f"Sunny in {args.city}."

The model gets exceptions as a sentence: an `OSError` with its own code, a
`CallError` unchanged, any other exception as a bug of the tool.
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
    """The result of a tool: `output` is for the model, the rest is for people and frontends.

    An attachment is `{"mime": …, "url": …, "filename": …}`, the url a data URL.
    """

    title: str = ""
    output: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: list[Any] | None = None


class ToolContext(Protocol):
    """The call, as its tool sees it. `abort` is set when the call was canceled or timed out."""

    session_id: str
    message_id: str | None
    agent: str | None
    call_id: str | None
    abort: asyncio.Event
    extra: dict[str, Any]

    async def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        """Require a permission, and ask a person if the rules say so. Raises when it is denied."""
        ...

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        """Publish the progress of the call."""
        ...


class DefinedTool(Generic[A]):
    """A tool made of a function. It can be called with arguments as a dict or as the model class."""

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
    """Make a tool of a function of its arguments and a `ToolContext`; one that is not async runs in a thread.

    `effect` is `write` unless set to `read`. `needs` are the permissions to check before it runs; by default its
    own name. `init` returns whether the tool can be used: None if so, else the reason, or a `Ready`.
    """
    if not re.fullmatch(NAME, tool_id):
        raise ValueError(f"{tool_id!r} is not a valid tool name; it must match {NAME}.")
    find_needs = _needs([Need(tool_id, "*")] if needs is None else needs)

    def define(function: Callable[[A, Any], Any]) -> DefinedTool[A]:
        tool = typed(
            parameters,
            name=tool_id,
            description=description,
            effect=Effect(effect),
            needs=find_needs,
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
    """The function as the pipeline runs it; exceptions become a `CallError`."""

    async def run(args: A, ctx: Context) -> Result:
        try:
            if inspect.iscoroutinefunction(function):
                return _result(name, await function(args, ctx))
            thread_context = _FromThread(ctx, asyncio.get_running_loop())
            return _result(name, await ctx.in_thread(lambda is_over: function(args, thread_context)))
        except CallError:
            raise
        except OSError as error:
            raise _file_failed(error) from error
        except Exception as error:
            log.exception("the tool %s failed", name)
            raise Internal(f"{name} failed: {type(error).__name__}: {error}") from error

    return run


def _result(name: str, value: Any) -> Result:
    match value:
        case Result():
            return value
        case str():
            return Result(output=value)
        case ToolResult():
            attachments = tuple(_attachment(item) for item in value.attachments or ())
            return Result(value.output, value.title, value.metadata, attachments)
        case _:
            raise TypeError(f"expected a str or a ToolResult, not {type(value).__name__}")


def _attachment(item: Any) -> Attachment:
    return item if isinstance(item, Attachment) else Attachment(**item)


def _file_failed(error: OSError) -> FileFailed:
    """The code is the name of the errno, which an error raised by Python code may lack; then its class decides."""
    by_class = next((known for kind, known in _NUMBERS.items() if isinstance(error, kind)), EIO)
    number = error.errno if error.errno is not None and error.errno in errorcode else by_class
    path = "" if error.filename is None else str(error.filename)
    message = f"{path}: {error.strerror}." if path and error.strerror else str(error) or type(error).__name__
    return FileFailed(number, path, message)


class _FromThread:
    """The context for a function in a thread: progress is passed to the event loop."""

    def __init__(self, ctx: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._ctx = ctx
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        self._loop.call_soon_threadsafe(self._ctx.metadata, title, metadata)

    def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        raise TypeError("only an `async def` tool can ask while it runs; other tools declare their `needs`")


def _starter(init: Init) -> Callable[[Audience], Awaitable[Ready]]:
    async def start(audience: Audience) -> Ready:
        if inspect.iscoroutinefunction(init):
            answer = await init(audience)
        else:
            answer = await asyncio.to_thread(init, audience)
        return answer if isinstance(answer, Ready) else Ready(reason=answer)

    return start
