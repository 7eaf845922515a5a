"""A real service with toy tools, made to be killed.

`python tests/faults/fault_service.py --data-dir D --port P` serves until a signal comes, as `toolcrib serve` does;
with `--bare` as anybody would run the application under uvicorn.

`--zygote` imports everything once and then forks a service for each line `start D` it reads, so that a restart
takes a fraction of a second. It answers with the child's pid and address; `wait PID` answers with its exit code;
`try SECONDS D` starts one and kills it that soon; `start D POINT:N` starts one that kills itself when it reaches a
point (see `points.py`) for the n-th time. When its input ends, it takes its children along.
"""

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path[0] = str(ROOT)  # instead of this folder, whose names are nobody's packages

import alembic.command  # noqa: E402, F401 - the first start of a data directory migrates; import it before the fork
import uvicorn  # noqa: E402
import uvloop  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from app import logs, server  # noqa: E402
from app.api.http import sse  # noqa: E402
from app.config import Settings, load  # noqa: E402
from app.core.custom_tools import ClientDefinition  # noqa: E402
from app.core.ports import PathScope  # noqa: E402
from app.core.redaction import Redactor  # noqa: E402
from app.core.results import Result  # noqa: E402
from app.core.rules import Need  # noqa: E402
from app.core.tools import Context, Effect, Lane, Tool, typed  # noqa: E402
from app.custom import client_tools  # noqa: E402
from app.dispatch.events import subscriptions  # noqa: E402
from app.main import create_app  # noqa: E402
from app.server import Server, configure  # noqa: E402
from app.store import db  # noqa: E402
from app.tools import BUILTINS  # noqa: E402
from tests.faults import kill_points  # noqa: E402
from tests.faults.data_checks import CHUNK, CHUNKS  # noqa: E402

KEY = "tk_the_key_of_the_fault_tests"
EFFECTS = "effects.txt"
SOON = 0.05


class Token(BaseModel, extra="forbid"):
    token: str
    seconds: float = 0


class Slow(BaseModel, extra="forbid"):
    token: str
    chunks: int = CHUNKS
    seconds: float = 0.01
    stream: Literal["stdout", "stderr"] = "stdout"


class Say(BaseModel, extra="forbid"):
    pieces: list[str]
    breaks: bool = False


class Nothing(BaseModel, extra="forbid"):
    pass


def no_needs(args: BaseModel, scope: PathScope) -> list[Need]:
    return []


def to_mark(args: Token, scope: PathScope) -> list[Need]:
    """What has to be asked unless a rule says otherwise."""
    return [Need("escalate", args.token)]


def toys(data_dir: Path) -> list[Tool]:
    """`echo` says it again, `append` leaves a mark that cannot be taken back, `turn` does so alone, `slow` streams,
    `say` streams piece by piece and may break, `relay` lets `turn` leave the mark, `careful` leaves it when a person
    allows that, `elsewhere` is run by the client."""

    async def echo(args: Token, ctx: Context) -> Result:
        return Result(output=args.token)

    async def append(args: Token, ctx: Context) -> Result:
        leave_mark(data_dir / EFFECTS, args.token)
        await asyncio.sleep(args.seconds)
        return Result(output=args.token)

    async def slow(args: Slow, ctx: Context) -> Result:
        said = ""
        for number in range(args.chunks):
            text = CHUNK.format(number)
            await ctx.output(text, args.stream)
            ctx.metadata(title=f"{number + 1} of {args.chunks}", metadata={"done": number + 1})
            said += text
            await asyncio.sleep(args.seconds)
        return Result(output=said)

    async def say(args: Say, ctx: Context) -> Result:
        for piece in args.pieces:
            await ctx.output(piece)
            ctx.metadata(title=piece, metadata={"all": "".join(args.pieces)})
            await asyncio.sleep(0.01)
        if args.breaks:
            raise RuntimeError("".join(args.pieces))
        return Result(output="".join(args.pieces), title=args.pieces[0], structured=args.pieces)

    async def relay(args: Token, ctx: Context) -> Result:
        return await ctx.call("turn", {"token": f"{args.token}-child"})

    write, none = Effect.WRITE, Lane.NONE
    return [
        typed(Token, name="echo", description="Say it again.", effect=Effect.READ, needs=no_needs, run=echo),
        typed(Token, name="append", description="Mark.", effect=write, needs=no_needs, run=append, lane=none),
        typed(Token, name="turn", description="Mark, one at a time.", effect=write, needs=no_needs, run=append),
        typed(Token, name="careful", description="Mark, if I may.", effect=write, needs=to_mark, run=append, lane=none),
        typed(Say, name="say", description="Say.", effect=Effect.READ, needs=no_needs, run=say, lane=none),
        typed(Slow, name="slow", description="Stream.", effect=Effect.READ, needs=no_needs, run=slow, lane=none),
        typed(Token, name="relay", description="Let mark.", effect=Effect.READ, needs=no_needs, run=relay, lane=none),
        client_tools.make(ELSEWHERE, None),
    ]


ELSEWHERE = ClientDefinition(
    kind="client",
    name="elsewhere",
    description="Run by the client.",
    parameters=Token.model_json_schema(),
)


class Inside:
    """A tool that tells what the service holds in memory and of the kernel, without the pool of database readers."""

    def __init__(self) -> None:
        self.app: FastAPI | None = None

    @property
    def tool(self) -> Tool:
        return typed(
            Nothing,
            name="inside",
            description="Look.",
            effect=Effect.READ,
            needs=no_needs,
            run=self.run,
            lane=Lane.NONE,
        )

    async def run(self, args: Nothing, ctx: Context) -> Result:
        assert self.app is not None
        gc.collect()
        hub = self.app.state.services.hub
        held = {
            "tasks": len(asyncio.all_tasks()),
            "threads": sum("_connection_worker_thread" not in thread.name for thread in threading.enumerate()),
            "fds": open_files(),
            "subscribers": len(hub._all_calls) + sum(map(len, hub._by_call.values())),
        }
        return Result(output="", structured=held, metadata={"objects": len(gc.get_objects())})


def open_files() -> int:
    """All but those of the database: SQLite closes them when it can, which is when no reader holds a lock."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(not Path(name).name.startswith("toolcrib.db") for name in names)


def leave_mark(path: Path, token: str) -> None:
    """One line, on the disk when this returns: the side effect that must not happen twice."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{token}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def hurry_store() -> None:
    """Tests need not wait five seconds for a lock, nor write sixteen megabytes until a checkpoint."""
    if seconds := os.environ.get("FAULT_BUSY_SECONDS"):
        db.BUSY_SECONDS = float(seconds)
    if pages := os.environ.get("FAULT_CHECKPOINT_PAGES"):
        db.PRAGMAS = (*db.PRAGMAS, f"wal_autocheckpoint={int(pages)}")


def hurry() -> None:
    """Shorten what a test would have to wait for: how long a client may leave its answer unread."""
    if seconds := os.environ.get("FAULT_UNREAD_SECONDS"):
        sse.SEND_SECONDS = float(seconds)
        server.UNREAD_MILLISECONDS = int(float(seconds) * 1000)


def keep_little() -> None:
    """Make small what the service keeps on purpose, pages of the database and events told lately: then what grows is
    a leak."""
    if os.environ.get("FAULT_SMALL_CACHES"):
        with closing(sqlite3.connect(":memory:")) as small:
            small.execute("PRAGMA soft_heap_limit=1000000").close()  # of all connections of this process
        subscriptions.MAX_RECENT_BYTES = 64 * 1024


def settings_of(data_dir: Path, **flags: Any) -> Settings:
    return load(data_dir=data_dir, api_key=KEY, **flags)


def make_app(settings: Settings) -> FastAPI:
    hurry()
    hurry_store()
    keep_little()
    redactor = Redactor()
    logs.configure(settings.log_level, "text", redactor)
    inside = Inside()
    tools = [*BUILTINS, *toys(settings.data_dir), inside.tool]
    inside.app = create_app(settings, tools=tools, redactor=redactor)
    return inside.app


async def serve(data_dir: Path, port: int, announce: Callable[[str], None], **flags: Any) -> None:
    """As `app.server.serve` does it, with the toys on the shelf."""
    settings = settings_of(data_dir, port=port, **flags)
    app = make_app(settings)
    async with app.router.lifespan_context(app):
        await Server(configure(app, settings), app.state.service, announce).serve()


def run(data_dir: Path, port: int, announce: Callable[[str], None], **flags: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(data_dir, port, announce, **flags))


def announce_to(fd: int) -> Callable[[str], None]:
    def announce(url: str) -> None:
        os.write(fd, f"{url}\n".encode())
        if fd > 2:
            os.close(fd)

    return announce


def fork_service(data_dir: Path, fault: str = "") -> tuple[int, int]:
    """A service in a child; its pid, and where its address can be read when it is ready."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        live_as_child(data_dir, told, fault)
    os.close(told)
    return pid, ready


def live_as_child(data_dir: Path, told: int, fault: str) -> None:
    """The child's whole life: it never returns to the zygote's code. One that is to die has little grace."""
    code = 1
    try:
        die_with_parent()
        log = os.open(data_dir.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        if fault:
            kill_points.arm(fault, sys.modules[__name__])
        run(data_dir, 0, announce_to(told), **({"grace": SOON} if fault else {}))
        code = 0
    except BaseException:  # noqa: BLE001 - the end of a process: what remains is to say why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """The kernel kills the service when the zygote ends, however that ends."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def start_service(data_dir: Path, fault: str = "") -> str:
    """Pid and address; the address is missing when it ended before it was ready."""
    pid, ready = fork_service(data_dir, fault)
    with os.fdopen(ready) as file:
        return f"{pid} {file.readline().strip()}"


def try_service(data_dir: Path, seconds: float) -> str:
    """A service that is killed so soon that it may not have been ready."""
    pid, ready = fork_service(data_dir)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.close(ready)
    return wait_for(pid)


def wait_for(pid: int) -> str:
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def be_zygote() -> None:
    """One command per line, one answer per line; who closes the input ends everything."""
    gc.collect()
    gc.freeze()  # so that the children's collectors leave alone, and uncopied, what they share
    for line in sys.stdin:
        verb, *given = line.strip().split(maxsplit=2)
        match verb:
            case "start":
                answer = start_service(Path(given[0]), *given[1:])
            case "try":
                answer = try_service(Path(given[1]), float(given[0]))
            case _:
                answer = wait_for(int(given[0]))
        print(answer, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zygote", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.zygote:
        be_zygote()
    elif given.bare:
        uvicorn.run(
            make_app(settings_of(given.data_dir)), port=given.port, loop="uvloop", http="httptools", access_log=False
        )
    else:
        run(given.data_dir, given.port, announce_to(1))


if __name__ == "__main__":
    main()
