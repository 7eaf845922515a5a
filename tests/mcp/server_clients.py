"""Clients of the door, and toys that have things to ask and to tell."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel

from app.core.errors import CallError
from app.core.results import Result
from app.core.tools import Context, Effect, Lane, Origin, Tool, typed
from tests.support.services import HANG, KEY, RunningService, until
from tests.support.toy_tools import Toys

ERAS = ["legacy", "auto"]
"""How a client of either era is made; `auto` finds the newer one."""


@asynccontextmanager
async def mcp_client(
    service: RunningService, mode: str, more: dict[str, str] | None = None, query: str = "", **options: Any
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {KEY}"} | (more or {})
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(HANG * 2, read=None)) as http,
        Client(
            streamable_http_client(f"{service.url}/mcp{query}", http_client=http), mode=mode, cache=None, **options
        ) as client,
    ):
        yield client


def texts(answer: types.CallToolResult) -> list[str]:
    return [block.text for block in answer.content if block.type == "text"]


class Waiting:
    """Something that goes on beside the test."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self.task = asyncio.ensure_future(work)

    async def result(self) -> Any:
        async with asyncio.timeout(HANG):
            return await self.task


class User:
    """Answers what a client puts to it, when it is let; writes down what it was asked."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self.asked: list[Any] = []
        self.was_canceled = asyncio.Event()
        self.go = asyncio.Event()
        self._answers = list(answers)

    async def __call__(self, ctx: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params)
        try:
            if not self._answers:
                await self.go.wait()
        except asyncio.CancelledError:
            self.was_canceled.set()
            raise
        return self._answers.pop(0)

    async def is_asked(self, times: int = 1) -> Any:
        await until(lambda: len(self.asked) >= times)
        return self.asked[-1]


class AskArgs(BaseModel, extra="forbid"):
    method: str
    params: dict[str, Any] = {}
    times: int = 1


class TellArgs(BaseModel, extra="forbid"):
    levels: list[str] = []


class ShowArgs(BaseModel, extra="forbid"):
    shows: dict[str, Any]


class AttendedToys(Toys):
    """The toys, those that turn to the client that waits for them, and tools that look like those of servers."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        free: dict[str, Any] = {"lane": Lane.NONE, "effect": Effect.READ, "needs": lambda args, scope: []}
        return (
            *super().tools,
            typed(AskArgs, name="turn_to_client", description="Asks the client.", run=_turn, **free),
            typed(TellArgs, name="log_to_client", description="Logs.", run=_log, **free),
            typed(ShowArgs, name="elicit", description="Elicits.", run=_elicit, **free),
        )


async def _turn(args: AskArgs, ctx: Context) -> Result:
    attendant = ctx.back_channel
    if attendant is None or not attendant.offers(args.method, args.params):
        return Result("not offered")
    answers = [await attendant.request(args.method, args.params) for _ in range(args.times)]
    return Result("answered", structured={"answers": answers})


async def _log(args: TellArgs, ctx: Context) -> Result:
    assert ctx.back_channel is not None
    for level in args.levels:
        ctx.back_channel.notify("notifications/message", {"level": level, "data": f"said {level}", "logger": "toy"})
    return Result("logged")


async def _elicit(args: ShowArgs, ctx: Context) -> Result:
    try:
        answer = await ctx.elicit(args.shows)
    except CallError as error:
        return Result(error.code)
    return Result(str(answer.action or answer.content))


def proxied(server: str, name: str, run: Callable[..., Any] | None = None, **raw: Any) -> Tool:
    """A tool as one of a server becomes."""

    async def answer(args: Any, ctx: Context) -> Result:
        return Result(f"{server} did {name}")

    return Tool(
        name=f"mcp__{server}__{name}",
        title=raw.get("title", name),
        description=raw.get("description", ""),
        schema=raw.get("inputSchema", {"type": "object"}),
        parse=lambda given: given,
        needs=lambda args, scope: [],
        run=run or answer,
        effect=Effect.READ,
        lane=Lane.NONE,
        source="mcp",
        output_schema=raw.get("outputSchema"),
        origin=Origin(server, {"name": name, "inputSchema": {"type": "object"}} | raw),
    )


def accept(**content: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=content)
