"""A real service with toy tools, made to be killed.

`python tests/faults/fault_service.py --data-dir D --port P` serves until a signal comes, as `toolcrib serve` does;
with `--bare` as anybody would run the application under uvicorn.

`--zygote` imports everything once and then forks a service for each line `start D` it reads, so that a restart
takes a fraction of a second. It answers with the child's pid and address; `wait PID` answers with its exit code;
`try SECONDS D` starts one and kills it that soon. When its input ends, it takes its children along.
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path[0] = str(ROOT)  # instead of this folder, whose names are nobody's packages

import alembic.command  # noqa: E402, F401 - the first start of a data directory migrates; import it before the fork
import uvicorn  # noqa: E402
import uvloop  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from app.config import load  # noqa: E402
from app.core.ports import Scope  # noqa: E402
from app.core.results import Result  # noqa: E402
from app.core.rules import Need  # noqa: E402
from app.core.tools import Context, Effect, Lane, Tool, typed  # noqa: E402
from app.logs import configure  # noqa: E402
from app.main import create_app  # noqa: E402
from app.server import Server  # noqa: E402
from app.tools import BUILTINS  # noqa: E402

KEY = "tk_the_key_of_the_fault_tests"
EFFECTS = "effects.txt"
CHUNK = "progress: ä 漢 😀 {}\n"


class Token(BaseModel, extra="forbid"):
    token: str
    seconds: float = 0


class Slow(BaseModel, extra="forbid"):
    token: str
    chunks: int = 5
    seconds: float = 0.01
    stream: Literal["stdout", "stderr"] = "stdout"


def no_needs(args: BaseModel, scope: Scope) -> list[Need]:
    return []


def toys(data_dir: Path) -> list[Tool]:
    """`echo` says it again, `append` leaves a mark that cannot be taken back, `turn` does so alone, `slow` streams."""

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

    write, none = Effect.WRITE, Lane.NONE
    return [
        typed(Token, name="echo", description="Say it again.", effect=Effect.READ, needs=no_needs, run=echo),
        typed(Token, name="append", description="Mark.", effect=write, needs=no_needs, run=append, lane=none),
        typed(Token, name="turn", description="Mark, one at a time.", effect=write, needs=no_needs, run=append),
        typed(Slow, name="slow", description="Stream.", effect=Effect.READ, needs=no_needs, run=slow, lane=none),
    ]


def leave_mark(path: Path, token: str) -> None:
    """One line, on the disk when this returns: the side effect that must not happen twice."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{token}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def make_app(data_dir: Path) -> FastAPI:
    settings = load(data_dir=data_dir, api_key=KEY)
    configure(settings.log_level, "text")
    return create_app(settings, tools=[*BUILTINS, *toys(data_dir)])


async def serve(data_dir: Path, port: int, announce: Callable[[str], None]) -> None:
    """As `app.server.serve` does it, with the toys on the shelf."""
    app = make_app(data_dir)
    config = uvicorn.Config(
        app,
        port=port,
        lifespan="off",
        http="httptools",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    async with app.router.lifespan_context(app):
        await Server(config, app.state.house, announce).serve()


def run(data_dir: Path, port: int, announce: Callable[[str], None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(data_dir, port, announce))


def announce_to(fd: int) -> Callable[[str], None]:
    def announce(url: str) -> None:
        os.write(fd, f"{url}\n".encode())
        if fd > 2:
            os.close(fd)

    return announce


def fork_service(data_dir: Path) -> tuple[int, int]:
    """A service in a child; its pid, and where its address can be read when it is ready."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        live_as_child(data_dir, told)
    os.close(told)
    return pid, ready


def live_as_child(data_dir: Path, told: int) -> None:
    """The child's whole life: it never returns to the zygote's code."""
    code = 1
    try:
        die_with_parent()
        log = os.open(data_dir.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        run(data_dir, 0, announce_to(told))
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


def start_service(data_dir: Path) -> str:
    """Pid and address; the address is missing when it ended before it was ready."""
    pid, ready = fork_service(data_dir)
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
    for line in sys.stdin:
        verb, *given = line.split(maxsplit=2)
        match verb:
            case "start":
                answer = start_service(Path(given[0]))
            case "try":
                answer = try_service(Path(given[1].strip()), float(given[0]))
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
        uvicorn.run(make_app(given.data_dir), port=given.port, loop="uvloop", http="httptools", access_log=False)
    else:
        run(given.data_dir, given.port, announce_to(1))


if __name__ == "__main__":
    main()
