"""Tools: what a tool is, and all it can reach of the world."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.context import Line
from app.core.errors import CallError, Canceled, FileFailed, InvalidArgs, ToolUnavailable
from app.core.mcp_resources import McpResources
from app.core.ports import HttpRequest, HttpResponse, PathScope, SearchResult, Snapshot, Workspace
from app.core.results import Result
from app.core.rules import Need
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal

T = TypeVar("T")
Payload = Literal["arguments", "input"]
SEARCHED = 16 * 1024 * 1024


class Effect(StrEnum):
    """Readers of a lane run together; a writer runs alone."""

    READ = "read"
    WRITE = "write"


class Lane(StrEnum):
    """Whose gate a tool waits at. An MCP server has a lane of its own, `server:{name}`."""

    WORKSPACE = "workspace"
    SESSION = "session"
    NONE = "none"


class Keep(StrEnum):
    """Which part of an output that is too long the model still sees."""

    HEAD = "head"
    TAIL = "tail"
    MIDDLE = "middle"


@dataclass(frozen=True, slots=True)
class Truncation:
    limit: int = 100_000
    keep: Keep = Keep.HEAD


@dataclass(slots=True, kw_only=True)
class Context:
    """A tool's whole world while it runs. `trace` is the `traceparent` to send along, when calls are traced.

    `approved` are the canonical names of the files and folders that may be touched, for the opener to check; None when
    the tool said of none that it would.
    """

    id: str
    session_id: str
    workspace: Workspace
    line: Line
    call_id: str | None = None
    message_id: str | None = None
    agent: str | None = None
    trace: str | None = None
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    extra: dict[str, Any] = field(default_factory=dict)
    approved: frozenset[str] | None = None

    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        """Tell watchers how far it is: a `call.progress` event. Calls in quick succession are merged."""
        self.line.progress(title, metadata)

    async def output(self, text: str, stream: str = "stdout") -> None:
        """Hand out output as it comes: kept in the store, streamed as `call.output`."""
        await self.line.output(text, stream)

    def present(self, path: str) -> Snapshot | None:
        """A whole file of those that were approved; None when there is nothing of that name. It blocks."""
        try:
            return self.workspace.load(path, approved=self.approved)
        except FileFailed as error:
            if error.code != "ENOENT":
                raise
            return None

    async def in_thread(self, work: Callable[[Event], T]) -> T:
        """Do blocking work beside the loop. The event it gets is set when nobody waits for it any more."""
        is_over = Event()
        try:
            return await asyncio.to_thread(work, is_over)
        finally:
            is_over.set()

    async def in_thread_to_end(self, work: Callable[[Event], T]) -> T:
        """Do blocking work that changes something. When somebody wants to stop it, the event it gets is set and its
        end is waited for: it raises `Canceled` if it can still give up; else it was too late, and its end counts."""
        is_over = Event()
        working = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work, is_over)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            is_over.set()
            await _ended(working)
            if isinstance(working.exception(), Canceled):
                raise
            task = asyncio.current_task()
            assert task is not None, "who waits is a task"
            task.uncancel()
            return working.result()

    async def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        """Require a permission in flight, from a person if need be; raises `PermissionDenied` or `AskExpired`."""
        await self.require([Need(permission, pattern) for pattern in patterns], metadata)

    async def require(self, needs: list[Need], metadata: dict[str, Any] | None = None) -> None:
        """The same for needs that say more than a permission and a pattern."""
        await self.line.require(needs, metadata)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send an HTTP request, as far as the session's network policy lets it."""
        return await self.line.send(request)

    async def environment(self) -> dict[str, str]:
        """The session's environment and what `shell.env` hooks add to it."""
        return await self.line.environment()

    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = SEARCHED
    ) -> SearchResult:
        """Run ripgrep on a folder or a file of the workspace."""
        return await self.line.search(path, arguments, seconds, limit)

    def may(self, needs: Sequence[Need]) -> list[bool]:
        """Whether rules allow each of these now. Nobody is asked."""
        return self.line.may(needs)

    def tools(self) -> "list[Tool]":
        """The tools this caller may use."""
        return self.line.tools()

    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        """Run another tool as a child of this call; raises its `CallError`."""
        return await self.line.call(tool, arguments)

    async def keep_plan(self, plan: dict[str, Any]) -> None:
        """Make this the session's plan: a `plan.updated` event."""
        await self.line.keep_plan(plan)

    def upload(self, id: str) -> BinaryIO:
        """A file that came with the request of this call, to be read; raises `FileFailed` when it is not there."""
        return self.line.upload(id)

    @asynccontextmanager
    async def started(self, command: Command) -> AsyncIterator[Process]:
        """A process behind the session's walls, for as long as the context lasts; nothing of it lives longer."""
        child = await self.line.start(command)
        try:
            yield child
        finally:
            await child.close()

    async def open_terminal(self, command: Command, shown: str) -> Terminal:
        """A process behind the session's walls that goes on when this call has ended; `shown` is how it is listed."""
        return await self.line.open_terminal(command, shown)

    def terminal(self, id: int) -> Terminal:
        """One of the session's; raises `InvalidArgs` when there is none of this number."""
        return self.line.terminal(id)

    def kernel(self, kind: str, memory: int | None = None) -> AbstractAsyncContextManager[Kernel]:
        """The session's interpreter of this kind (`js`, `python`), started if it does not run; nobody else uses it
        for as long as the context lasts."""
        return self.line.kernel(kind, memory)

    async def drop_kernel(self, kind: str) -> bool:
        """End the session's interpreter with all that is defined in it; False when none ran."""
        return await self.line.drop_kernel(kind)

    async def elicit(self, shows: dict[str, Any]) -> Answer:
        """Put a question of an MCP server to a person: an ask of kind `elicitation` with this as its metadata.

        The answer has `content`, or `action` says that there will be none; raises `AskExpired`.
        """
        return await self.line.elicit(shows)

    def go_on(self) -> None:
        """There was a sign of life: the tool's own time starts anew. What the caller set as a limit stays."""
        self.line.go_on()

    @property
    def session(self) -> Session:
        return self.line.session

    @property
    def attendant(self) -> BackChannel | None:
        """The MCP client that waits for this call, if there is one."""
        return self.line.attendant

    @property
    def neighbours(self) -> McpResources:
        """What MCP servers have besides tools."""
        return self.line.neighbours


class Origin(NamedTuple):
    """Where an MCP tool comes from: the server, and the tool as that one lists it, name and all."""

    server: str
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.raw["name"]
        return name


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a tool, with the argument names its users know it by."""

    name: str
    adapt: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """For whom tools are listed. None: whoever it is."""

    provider: str | None = None
    model: str | None = None
    agent: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What `init` found: why the tool cannot be used, if so, and the error of a call of it then; what it says to this
    audience, if that differs."""

    reason: str | None = None
    error: type[CallError] = ToolUnavailable
    description: str | None = None
    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A thing an agent can use. Built-in, custom and MCP tools all become this value.

    `permission` is the one its needs are mostly about (its own name when not said): a blanket deny of it hides the
    tool. `asks` gives the questions a person answers before it runs; the answer is in `Context.extra["answer"]`.
    A tool that takes `input` gets a text, which may have a `grammar` (Lark); `{"input": text}` as `arguments` is the
    same to it.
    `polls`: to call it again and again with the same arguments is its use. `owner` is the principal whose tool it
    is; None is everybody's. A tool that `is_client_run` is run by the caller, who posts its result. One that is not
    `is_listed` is there for routes of the service, or for models that know it anyway: it goes the line like any other,
    and no list names it.
    One that `is_walled` starts processes for a model, and cannot be used where nothing keeps those in their walls.
    `explains` is what a person who is asked whether it may run gets to see besides its needs. `output_schema` is that
    of `Result.structured`, where it is known. A tool of an MCP server has an `origin`.
    """

    name: str
    title: str
    description: str
    schema: dict[str, Any]
    parse: Callable[[Any], Any]
    needs: Callable[[Any, PathScope], list[Need]]
    run: Callable[[Any, Context], Awaitable[Result]]
    effect: Effect | Callable[[Any], Effect]
    takes: Payload = "arguments"
    grammar: str | None = None
    lane: str = Lane.WORKSPACE
    timeout: float = 120.0
    truncation: Truncation = Truncation()
    source: str = "builtin"
    permission: str | None = None
    aliases: tuple[Alias, ...] = ()
    annotations: dict[str, Any] = field(default_factory=dict)
    polls: bool = False
    asks: Callable[[Any], list[dict[str, Any]]] | None = None
    init: Callable[[Audience], Awaitable[Ready]] | None = None
    suits: Callable[[Audience], bool] | None = None
    owner: str | None = None
    is_client_run: bool = False
    is_listed: bool = True
    is_walled: bool = False
    explains: Callable[[Any], dict[str, Any]] | None = None
    output_schema: dict[str, Any] | None = None
    origin: Origin | None = None

    def effect_of(self, args: Any) -> Effect:
        return self.effect if isinstance(self.effect, Effect) else self.effect(args)

    def view(self) -> dict[str, Any]:
        """The tool as the world sees it. An effect that depends on the arguments is told as `write`."""
        effect = self.effect if isinstance(self.effect, Effect) else Effect.WRITE
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "parameters": self.schema,
            "output_schema": self.output_schema,
            "takes": self.takes,
            "grammar": self.grammar,
            "effect": effect.value,
            "lane": str(self.lane),
            "timeout": self.timeout,
            "source": self.source,
            "server": self.origin and self.origin.server,
            "aliases": [alias.name for alias in self.aliases],
            "annotations": self.annotations,
        }


def go_on(stop: Event) -> None:
    """For work that changes something: the last moment to give up is before the first change."""
    if stop.is_set():
        raise Canceled("The call was canceled before anything was written.")


async def _ended(working: "asyncio.Future[T]") -> None:
    """Wait for its end, however often somebody wants that to stop."""
    while not working.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([working])


A = TypeVar("A", bound=BaseModel)


def typed(
    args: type[A],
    *,
    name: str,
    description: str,
    effect: Effect | Callable[[A], Effect],
    needs: Callable[[A, PathScope], list[Need]],
    run: Callable[[A, Context], Awaitable[Result]],
    title: str | None = None,
    **more: Any,
) -> Tool:
    """A tool whose arguments are a pydantic model; the model's validator is compiled once, here."""
    schema = args.model_json_schema()
    schema.pop("title", None)

    def parse(raw: Any) -> A:
        try:
            return args.model_validate(raw)
        except ValidationError as error:
            raise InvalidArgs(_explain(name, error, args), details={"fields": _fields(error)}) from None

    return Tool(
        name=name,
        title=title or name.replace("_", " ").capitalize(),
        description=description,
        schema=schema,
        parse=parse,
        needs=needs,
        run=run,
        effect=effect,
        **more,
    )


def _explain(tool: str, error: ValidationError, args: type[BaseModel]) -> str:
    """One sentence per mistake, in words a model can act on."""
    mistakes = [_mistake(item) for item in error.errors(include_url=False, include_context=False)]
    known = ", ".join(args.model_fields) or "nothing"
    return f"{tool} cannot take these arguments: {'; '.join(mistakes)}. It takes: {known}."


def _mistake(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"]) or "arguments"
    match item["type"]:
        case "missing":
            return f"`{where}` is required"
        case "extra_forbidden":
            return f"`{where}` is not a parameter of this tool, leave it out"
        case _:
            given = repr(item["input"])
            shown = given if len(given) <= 80 else given[:77] + "..."
            return f"`{where}`: {item['msg'][:1].lower()}{item['msg'][1:]} (got {shown})"


def _fields(error: ValidationError) -> list[str]:
    return [".".join(str(part) for part in item["loc"]) for item in error.errors(include_url=False)]
