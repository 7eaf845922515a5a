"""Toy tools: each does one thing a test can watch. Their shared state is in `Toys`, fresh for every test."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from app.core.errors import CallError
from app.core.hooks import Hook, Point
from app.core.ports import PathScope
from app.core.results import Keep, Result, Truncation
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed


class EchoArgs(BaseModel, extra="forbid"):
    text: Any = ""


class WaitArgs(BaseModel, extra="forbid"):
    name: str = "wait"
    effect: Effect = Effect.READ
    say: str = ""


class SayArgs(BaseModel, extra="forbid"):
    texts: list[str]
    streams: list[str] = ["stdout"]
    wait: bool = False


class TellArgs(BaseModel, extra="forbid"):
    steps: int


class RelayArgs(BaseModel, extra="forbid"):
    tool: str
    arguments: dict[str, Any] = {}
    effect: Effect = Effect.READ
    times: int = 1


class FanArgs(BaseModel, extra="forbid"):
    calls: list[tuple[str, dict[str, Any]]]
    wait: bool = True


class NoteArgs(BaseModel, extra="forbid"):
    text: str = ""


class FloodArgs(BaseModel, extra="forbid"):
    text: str = "x"
    times: int = 1


class FailArgs(BaseModel, extra="forbid"):
    code: str = "ExitCode:3"
    output: str | None = "what it printed"


class StubbornArgs(BaseModel, extra="forbid"):
    ending: str = "raise"


class NeedArgs(BaseModel, extra="forbid"):
    path: str


class ActArgs(BaseModel, extra="forbid"):
    paths: list[str]
    text: str = ""


class ConsentArgs(BaseModel, extra="forbid"):
    patterns: list[str]
    effect: Effect = Effect.WRITE


class InquireArgs(BaseModel, extra="forbid"):
    questions: list[dict[str, Any]]


class ToyBug(Exception):
    """What a tool raises that has a bug."""


class Toys:
    """Twelve tools and the strings they hang on."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.log: list[str] = []
        self.contexts: list[Context] = []
        self.started: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.look: Callable[[Context], None] = lambda ctx: None
        self.tasks: list[asyncio.Task[Result]] = []
        self.more: list[Tool] = []

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (
            _tool(EchoArgs, "echo", self._echo),
            _tool(WaitArgs, "wait", self._wait, effect=_effect),
            _tool(WaitArgs, "wait_apart", self._wait, effect=_effect, lane=Lane.SESSION),
            _tool(WaitArgs, "wait_free", self._wait, effect=_effect, lane=Lane.NONE),
            _tool(WaitArgs, "wait_briefly", self._wait, effect=_effect, lane=Lane.NONE, timeout=0.05),
            _tool(SayArgs, "say", self._say, lane=Lane.NONE, truncation=Truncation(1000, Keep.TAIL)),
            _tool(TellArgs, "tell", self._tell, lane=Lane.NONE),
            _tool(RelayArgs, "relay", self._relay, effect=_effect),
            _tool(RelayArgs, "relay_apart", self._relay, effect=_effect, lane=Lane.SESSION),
            _tool(FanArgs, "fan", self._fan),
            _tool(NoteArgs, "note", self._note, effect=Effect.WRITE),
            _tool(FloodArgs, "flood", self._flood, lane=Lane.NONE, truncation=Truncation(100, Keep.HEAD)),
            _tool(NoteArgs, "bug", self._bug, lane=Lane.NONE),
            _tool(NoteArgs, "odd", self._odd, lane=Lane.NONE),
            _tool(FailArgs, "fail", self._fail, lane=Lane.NONE),
            _tool(StubbornArgs, "stubborn", self._stubborn, lane=Lane.NONE),
            _tool(NeedArgs, "need", self._need, needs=lambda args, scope: [Need("read", args.path)]),
            _tool(ActArgs, "act", self._act, needs=_edits, effect=Effect.WRITE),
            _tool(ActArgs, "poll", self._act, needs=_edits, lane=Lane.NONE, polls=True),
            _tool(ConsentArgs, "consent", self._consent, effect=_effect),
            _tool(InquireArgs, "inquire", self._inquire, lane=Lane.NONE, asks=lambda args: args.questions),
            _tool(NoteArgs, "bad_needs", self._note, needs=_broken_needs),
            _shout(self),
            *self.more,
        )

    async def _echo(self, args: EchoArgs, ctx: Context) -> Result:
        self.contexts.append(ctx)
        self.look(ctx)
        return Result(output=str(args.text), title="echo", structured={"text": args.text})

    async def _wait(self, args: WaitArgs, ctx: Context) -> Result:
        self.contexts.append(ctx)
        self.log.append(f"{args.name} in")
        self.started[args.name].set()
        try:
            if args.say:
                await ctx.output(args.say)
            await self.go[args.name].wait()
        finally:
            self.log.append(f"{args.name} out")
        return Result(output=args.name)

    async def _say(self, args: SayArgs, ctx: Context) -> Result:
        for number, text in enumerate(args.texts):
            await ctx.output(text, args.streams[number % len(args.streams)])
        self.started["say"].set()
        if args.wait:
            await self.go["say"].wait()
        return Result(output="said")

    async def _tell(self, args: TellArgs, ctx: Context) -> Result:
        for step in range(args.steps):
            ctx.metadata(title=f"step {step}", metadata={"step": step, f"was_{step % 3}": True})
        return Result(output="told")

    async def _relay(self, args: RelayArgs, ctx: Context) -> Result:
        self.contexts.append(ctx)
        results = await asyncio.gather(*(ctx.call(args.tool, args.arguments) for _ in range(args.times)))
        return Result(output=" ".join(result.output for result in results))

    async def _fan(self, args: FanArgs, ctx: Context) -> Result:
        """Calls several at once and gives up at the first failure, or does not wait at all."""
        self.contexts.append(ctx)
        calling = [asyncio.create_task(ctx.call(tool, arguments)) for tool, arguments in args.calls]
        self.tasks.extend(calling)
        if args.wait:
            await asyncio.gather(*calling)
        else:
            await self.started["child"].wait()
        return Result(output="done")

    async def _note(self, args: NoteArgs, ctx: Context) -> Result:
        self.notes.append(args.text)
        return Result(output=args.text)

    async def _flood(self, args: FloodArgs, ctx: Context) -> Result:
        return Result(output=args.text * args.times)

    async def _bug(self, args: NoteArgs, ctx: Context) -> Result:
        raise ToyBug(f"secret detail {args.text}")

    async def _odd(self, args: NoteArgs, ctx: Context) -> Result:
        """Gives back what JSON cannot say: a lone surrogate, or an object."""
        if args.text == "surrogate":
            return Result(output="a\ud800b", title="\udc80")
        if args.text == "object":
            return Result(output="fine", structured=object())
        if args.text == "metadata":
            ctx.metadata(metadata={"fine": 1})
            ctx.metadata(metadata={"odd": object()})
        if args.text == "exit":
            raise SystemExit(3)
        if args.text == "cancel":
            raise asyncio.CancelledError
        raise CallError("odd \ud800 message")

    async def _fail(self, args: FailArgs, ctx: Context) -> Result:
        error = CallError("It went wrong.", result=None if args.output is None else Result(output=args.output))
        error.code = args.code
        raise error

    async def _stubborn(self, args: StubbornArgs, ctx: Context) -> Result:
        self.started["stubborn"].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.started["canceled"].set()
            await self.go["stubborn"].wait()
            if args.ending == "raise":
                raise
        return Result(output="finished all the same")

    async def _act(self, args: ActArgs, ctx: Context) -> Result:
        self.notes.append(args.text)
        return Result(output=f"edited {' '.join(args.paths)}")

    async def _consent(self, args: ConsentArgs, ctx: Context) -> Result:
        """Asks in flight, and says how that went."""
        self.contexts.append(ctx)
        self.started["consent"].set()
        try:
            await ctx.ask("shell", args.patterns, {"why": "a toy wants to"})
        except CallError as error:
            self.log.append(error.code)
            raise
        self.log.append("may")
        await self.go["consent"].wait()
        return Result(output="did " + " ".join(args.patterns))

    async def _inquire(self, args: InquireArgs, ctx: Context) -> Result:
        return Result(output=str(ctx.extra["answer"]))

    async def _need(self, args: NeedArgs, ctx: Context) -> Result:
        return Result(output=f"had {args.path}")


class ToyHook:
    """A hook that writes down when it was met, and may change, hold or refuse what goes through it."""

    def __init__(self, name: str, tools: set[str] | None = None, *, log: list[str] | None = None, **more: Any) -> None:
        self.log = [] if log is None else log
        self.attempts: list[int] = []
        self.met = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.change: Callable[[Any], Any] = lambda payload: payload
        self.change_output: Callable[[str], str] | None = None
        self.refusal: str | None = None
        self.look: Callable[[dict[str, Any]], None] = lambda about: None
        points = more.pop("points", frozenset({Point.BEFORE, Point.AFTER}))
        self.hook = Hook(name=name, points=points, run=self.run, tools=tuple(tools or {"*"}), **more)

    async def run(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        return await (self._before(about) if point is Point.BEFORE else self._after(about))

    async def _before(self, about: dict[str, Any]) -> dict[str, Any] | None:
        takes = "input" if "input" in about else "arguments"
        self.log.append(f"{self.hook.name} before {about[takes]}")
        self.attempts.append(about["attempt"])
        self.look(about)
        self.met.set()
        await self.go.wait()
        return {"deny": self.refusal} if self.refusal else {takes: self.change(about[takes])}

    async def _after(self, about: dict[str, Any]) -> dict[str, Any] | None:
        self.log.append(f"{self.hook.name} after {about['output']}")
        return self.change_output and {"output": self.change_output(about["output"])}


def _edits(args: ActArgs, scope: PathScope) -> list[Need]:
    return [Need("edit", path) for path in args.paths]


def _effect(args: WaitArgs | RelayArgs | ConsentArgs) -> Effect:
    return args.effect


def _no_needs(args: Any, scope: PathScope) -> list[Need]:
    return []


def _broken_needs(args: Any, scope: PathScope) -> list[Need]:
    raise ToyBug("needs broke")


def _tool(args: type[BaseModel], name: str, run: Callable[[Any, Context], Any], **more: Any) -> Tool:
    return replace(_blank(args, name), run=run, **more)


@cache
def _blank(args: type[BaseModel], name: str) -> Tool:
    """One without hands. Services are opened thousands of times in tests, and a schema takes as long as ten calls."""

    async def run(args: Any, ctx: Context) -> Result:
        raise ToyBug(f"{name} was given no hands")

    return typed(args, name=name, description=f"The toy {name}.", effect=Effect.READ, needs=_no_needs, run=run)


def _shout(toys: Toys) -> Tool:
    """The one that takes free text."""

    async def run(text: str, ctx: Context) -> Result:
        return Result(output=text.upper())

    return Tool(
        name="shout",
        title="Shout",
        description="The toy shout.",
        schema={"type": "string"},
        parse=lambda raw: raw,
        needs=_no_needs,
        run=run,
        effect=Effect.READ,
        takes="input",
        lane=Lane.NONE,
        source="toys",
    )
