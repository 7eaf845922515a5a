"""The two servers that are compared: a bare FastAPI echo, and Toolcrib with an echo tool and everything else on.

`python -m bench.servers echo --port 8801`, `python -m bench.servers toolcrib --port 8802 --data-dir D`.
"""

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import BaseModel

KEY = "bench-key"
TEXT = "a sentence of about the length that a model would send to a tool"
BODY = {"tool": "echo", "session": "default", "arguments": {"text": TEXT}}


class Asked(BaseModel):
    tool: str
    session: str
    workspace: str = "default"
    arguments: dict[str, Any]


class Answered(BaseModel):
    id: str
    tool: str
    session: str
    workspace: str
    status: str
    result: Any
    created_at: float
    finished_at: float


def bare_echo() -> FastAPI:
    """What everybody would write first: a pydantic body in, a response_model out, nothing kept."""
    app = FastAPI()
    numbers, mark = itertools.count(), os.urandom(3).hex()

    @app.get("/readyz")
    async def ready() -> str:
        return "ok"

    @app.post("/v1/calls", response_model=Answered)
    async def create_call(asked: Asked) -> dict[str, Any]:
        began = time.time()
        return {
            "id": f"{time.time_ns() // 1_000_000:012x}{next(numbers):06x}{mark}",
            "tool": asked.tool,
            "session": asked.session,
            "workspace": asked.workspace,
            "status": "completed",
            "result": {"text": asked.arguments.get("text")},
            "created_at": began,
            "finished_at": time.time(),
        }

    return app


async def toolcrib(data_dir: Path, port: int) -> None:
    """Key, envelope, arguments, one need against three rules, the workspace's gate, two commits with fsync."""
    from app.config import load  # here, because the bare server should not pay for it
    from app.core.ports import PathScope
    from app.core.results import Result
    from app.core.rules import Need
    from app.core.tools import Context, Effect, Lane, typed
    from app.server import serve
    from app.tools import BUILTINS

    class Args(BaseModel, extra="forbid"):
        text: str

    def needs(args: Args, scope: PathScope) -> list[Need]:
        return [Need("read", "src/echo.txt")]

    async def run(args: Args, ctx: Context) -> Result:
        return Result(output=args.text)

    echo = typed(
        Args, name="echo", description="Say it again.", effect=Effect.READ, lane=Lane.WORKSPACE, needs=needs, run=run
    )
    rules = [
        {"action": "ask"},
        {"permission": "read", "pattern": "src/*", "action": "allow"},
        {"permission": "edit", "action": "deny"},
    ]
    more: dict[str, Any] = {"log_level": "warning", "streams_per_key": 10_000}
    settings = load(data_dir=data_dir, api_key=KEY, rules=rules, port=port, **more)
    await serve(settings, lambda url: None, tools=[*BUILTINS, echo])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["echo", "toolcrib"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    if given.which == "toolcrib":
        uvloop.run(toolcrib(given.data_dir, given.port))
        return
    uvicorn.run(
        bare_echo(),
        port=given.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )


if __name__ == "__main__":
    main()
