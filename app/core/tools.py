"""What a tool is, and `Context`: what a running tool sees and can do."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from app.core.asks import Answer
from app.core.back_channel import BackChannel
from app.core.errors import CallError, Canceled, FileFailed, InvalidArgs, ToolUnavailable
from app.core.ports import HttpRequest, HttpResponse, PathScope, SearchResult, Snapshot, Workspace
from app.core.results import Result, Truncation
from app.core.rules import Need
from app.core.sandbox import Command, Process
from app.core.sessions import Session
from app.core.terminals import Kernel, Terminal
from app.core.util.aio import finish_despite_cancel
from app.core.util.json_codec import Raw

T = TypeVar("T")
Payload = Literal["arguments", "input"]
MAX_SEARCH_BYTES = 16 * 1024 * 1024


class Effect(StrEnum):
    """Readers of a lane run together; a writer runs alone."""

    READ = "read"
    WRITE = "write"


class Lane(StrEnum):
    """Whose gate a tool waits at. An MCP server has a lane of its own, `server:{name}`."""

    WORKSPACE = "workspace"
    SESSION = "session"
    NONE = "none"


@dataclass(slots=True, kw_only=True)
class Context(ABC):
    """What a running tool sees and can do. The dispatcher implements it for each call."""

    id: str
    session_id: str
    workspace: Workspace
    call_id: str | None = None
    message_id: str | None = None
    agent: str | None = None
    #: The `traceparent` to send along, when calls are traced.
    trace: str | None = None
    #: Set when the call is to stop.
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    extra: dict[str, Any] = field(default_factory=dict)
    #: Canonical names of the files and folders the call may touch; None when its needs named no files.
    approved: frozenset[str] | None = None

    @property
    @abstractmethod
    def session(self) -> Session: ...

    @property
    @abstractmethod
    def back_channel(self) -> BackChannel | None:
        """The MCP client that waits for this call, if there is one."""

    @property
    @abstractmethod
    def mcp_resources(self) -> "McpResources":
        """Resources and prompts of the MCP servers."""

    @abstractmethod
    def metadata(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> None:
        """Publish a `call.progress` event. Calls in quick succession are merged."""

    @abstractmethod
    async def output(self, text: str, stream: str = "stdout") -> None:
        """Store output as it comes and publish it as `call.output`."""

    @abstractmethod
    async def require(self, needs: list[Need], metadata: dict[str, Any] | None = None) -> None:
        """Require permissions while the tool runs, from a person if a rule says `ask`.

        Raises `PermissionDenied` or `AskExpired`.
        """

    @abstractmethod
    def is_allowed(self, needs: Sequence[Need]) -> list[bool]:
        """Whether the rules allow each of these now. No person is asked."""

    @abstractmethod
    async def elicit(self, request: dict[str, Any]) -> Answer:
        """Ask a person what an MCP server wants to know: an ask of kind `elicitation` with this as its metadata.

        The answer has `content`, or `action` says that there will be none; raises `AskExpired`.
        """

    @abstractmethod
    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send an HTTP request, as far as the session's network policy allows it."""

    @abstractmethod
    async def environment(self) -> dict[str, str]:
        """The session's environment and what `shell.env` hooks add to it."""

    @abstractmethod
    async def search(
        self, path: str, arguments: Sequence[str], *, seconds: float = 30, limit: int = MAX_SEARCH_BYTES
    ) -> SearchResult:
        """Run ripgrep on a folder or a file of the workspace."""

    @abstractmethod
    def tools(self) -> "list[Tool]":
        """The tools this caller may use."""

    @abstractmethod
    async def call(self, tool: str, arguments: dict[str, Any]) -> Result:
        """Run another tool as a child of this call; raises its `CallError`."""

    @abstractmethod
    async def save_plan(self, plan: dict[str, Any]) -> None:
        """Make this the session's plan and publish `plan.updated`."""

    @abstractmethod
    def upload(self, id: str) -> BinaryIO:
        """Open a file that was uploaded with this call's request; raises `FileFailed` when it is not there."""

    @abstractmethod
    async def start(self, command: Command) -> Process:
        """Start a process in the session's sandbox. Prefer `process`, which also ends it."""

    @abstractmethod
    async def open_terminal(self, command: Command, title: str) -> Terminal:
        """Start a sandboxed process that outlives this call; `title` is how it is listed."""

    @abstractmethod
    def terminal(self, id: int) -> Terminal:
        """A terminal of the session; raises `InvalidArgs` when there is none of this number."""

    @abstractmethod
    def kernel(self, kind: str, memory: int | None = None) -> AbstractAsyncContextManager[Kernel]:
        """The session's interpreter of this kind (`js`, `python`), started if it does not run, for this call alone."""

    @abstractmethod
    async def drop_kernel(self, kind: str) -> bool:
        """End the session's interpreter with all that is defined in it; False when none ran."""

    @abstractmethod
    def reset_timeout(self) -> None:
        """Start the tool's own time limit again after a sign of progress. A limit set by the caller stays."""

    async def ask(self, permission: str, patterns: list[str], metadata: dict[str, Any] | None = None) -> None:
        """`require` for one permission and several patterns."""
        await self.require([Need(permission, pattern) for pattern in patterns], metadata)

    def load_if_exists(self, path: str) -> Snapshot | None:
        """Read a whole approved file; None when it does not exist. Blocks."""
        try:
            return self.workspace.load(path, approved=self.approved)
        except FileFailed as error:
            if error.code != "ENOENT":
                raise
            return None

    @asynccontextmanager
    async def process(self, command: Command) -> AsyncIterator[Process]:
        """A process in the session's sandbox; it and its children are killed when the context ends."""
        child = await self.start(command)
        try:
            yield child
        finally:
            await child.close()

    async def in_thread(self, work: Callable[[Event], T]) -> T:
        """Run blocking work in a thread. Its event is set when the call no longer waits for it."""
        is_over = Event()
        try:
            return await asyncio.to_thread(work, is_over)
        finally:
            is_over.set()

    async def in_thread_uncancelable(self, work: Callable[[Event], T]) -> T:
        """Run blocking work that changes something, and wait for its end even when the call is canceled.

        A cancel sets the event: work that has changed nothing yet raises `Canceled`; otherwise its result counts.
        """
        is_over = Event()
        working = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work, is_over)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            is_over.set()
            with suppress(asyncio.CancelledError):
                await finish_despite_cancel(asyncio.wait([working]))
            if isinstance(working.exception(), Canceled):
                raise
            task = asyncio.current_task()
            assert task is not None, "a task waits"
            task.uncancel()
            return working.result()


class ResourceList(NamedTuple):
    """One page. Each item is as its server said it, with `server` added."""

    items: list[Raw]
    next_cursor: str | None = None


class McpResources(Protocol):
    """Resources and prompts of MCP servers. A session sees shared servers and those of its principal.

    Without a server all of them are asked, in the order of their names, and there is no cursor; one that is down is
    left out. Raises `InvalidArgs` for a server that is not known or has no such thing, `ToolUnavailable` for one that
    is down, `McpFailed` with what it said, `McpDisconnected`.
    """

    async def resources(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def templates(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def prompts(self, session: Session, server: str | None, cursor: str | None = None) -> ResourceList: ...

    async def read(self, session: Session, server: str, uri: str, ctx: Context | None = None) -> Raw:
        """A resource: `{"contents": […]}`. What the server asks meanwhile belongs to the call it is read for."""
        ...

    async def prompt(
        self, session: Session, server: str, name: str, arguments: dict[str, str], ctx: Context | None = None
    ) -> Raw:
        """A prompt: `{"messages": […]}`, likewise."""
        ...

    async def complete(self, session: Session, server: str, params: Raw) -> Raw:
        """What would complete an argument of a prompt or template: `{"completion": {…}}`."""
        ...

    async def watch(self, session: Session, server: str, uri: str) -> None:
        """Subscribe to changes of this resource, as long as a client watches it."""
        ...

    async def unwatch(self, session: Session, server: str, uri: str) -> None: ...


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
    """For which caller tools are listed. None: any."""

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
    """A tool an agent can call. Built-in, custom and MCP tools all become this value."""

    name: str
    title: str
    description: str
    schema: dict[str, Any]
    #: Raw arguments to typed ones; raises `InvalidArgs`.
    parse: Callable[[Any], Any]
    #: What a call with these arguments needs permission for.
    needs: Callable[[Any, PathScope], list[Need]]
    run: Callable[[Any, Context], Awaitable[Result]]
    effect: Effect | Callable[[Any], Effect]
    #: `input`: the tool gets one text, which may have a `grammar`. `{"input": text}` as arguments is accepted too.
    takes: Payload = "arguments"
    #: Lark grammar of the input.
    grammar: str | None = None
    lane: str = Lane.WORKSPACE
    timeout: float = 120.0
    truncation: Truncation = field(default_factory=Truncation)
    source: str = "builtin"
    #: The permission its needs are mostly about, by default its name. A blanket deny of it hides the tool.
    permission: str | None = None
    aliases: tuple[Alias, ...] = ()
    annotations: dict[str, Any] = field(default_factory=dict)
    #: Calling it repeatedly with the same arguments is its normal use, so that is no doom loop.
    polls: bool = False
    #: Questions a person answers before it runs; the answer is in `Context.extra["answer"]`.
    asks: Callable[[Any], list[dict[str, Any]]] | None = None
    #: Whether the tool can be used, and how it describes itself to this audience.
    init: Callable[[Audience], Awaitable[Ready]] | None = None
    #: Whether it is listed for this audience.
    suits: Callable[[Audience], bool] | None = None
    #: The principal whose tool it is; None: every principal may use it.
    owner: str | None = None
    #: The caller runs the tool itself and posts the result.
    is_client_run: bool = False
    #: False: callable by name (by routes, or models that know it), but in no list.
    is_listed: bool = True
    #: It starts processes for a model and cannot be used where no sandbox works.
    is_sandboxed: bool = False
    #: What a person who is asked for permission sees besides the needs.
    explains: Callable[[Any], dict[str, Any]] | None = None
    #: Schema of `Result.structured`, where it is known.
    output_schema: dict[str, Any] | None = None
    #: The MCP server it comes from.
    origin: Origin | None = None

    def effect_of(self, args: Any) -> Effect:
        return self.effect if isinstance(self.effect, Effect) else self.effect(args)

    def view(self) -> dict[str, Any]:
        """The tool as `GET /v1/tools` shows it. An effect that depends on the arguments is shown as `write`."""
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


def raise_if_canceled(stop: Event) -> None:
    """For work in a thread, before its first change: raise `Canceled` when the call was canceled."""
    if stop.is_set():
        raise Canceled("The call was canceled before anything was written.")


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
            fields = [".".join(str(part) for part in item["loc"]) for item in error.errors(include_url=False)]
            raise InvalidArgs(_explain(name, error, args), details={"fields": fields}) from None

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
