"""What a tool gets as its environment: the session's, secrets by value, and what hooks make of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.errors import HookDenied, ToolUnavailable
from app.core.hooks import Point
from app.core.sessions import Session
from app.core.tools import Context
from tests.support.services import Crib
from tests.support.toy_tools import ToyHook

SESSION = Session("admin", "default", env={"LANG": "C", "TOKEN": {"secret": "API"}})


class Envoy(ToyHook):
    """Adds to the environment, or will not."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__("envoy", points=frozenset({Point.SHELL_ENV}))
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def run(self, point: Point, about: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(about)
        return self.answer


@pytest.fixture
async def open_crib(crib: Crib) -> AsyncIterator[Crib]:
    yield crib
    crib.toys.go["wait"].set()


async def running(crib: Crib) -> Context:
    """The context of a tool that runs in the session."""
    await crib.open()
    await crib.services.secrets.put("admin", "API", "hunter2hunter2", [])
    crib.services.dispatcher.submit(crib.request("wait"), SESSION)
    await crib.started("wait")
    return crib.toys.contexts[-1]


async def test_the_sessions_environment_comes_with_its_secrets_and_what_hooks_add(open_crib: Crib) -> None:
    envoy = Envoy({"env": {"LANG": "de_DE", "EXTRA": "1"}})
    open_crib.hooks = [envoy]

    ctx = await running(open_crib)

    assert await ctx.environment() == {"LANG": "de_DE", "TOKEN": "hunter2hunter2", "EXTRA": "1"}
    [about] = envoy.asked
    assert (about["tool"], about["session"], about["cwd"]) == ("wait", "default", ctx.workspace.root)
    assert "hunter2" not in str(about)


async def test_a_hook_may_refuse_it(open_crib: Crib) -> None:
    open_crib.hooks = [Envoy({"deny": "not today"})]

    with pytest.raises(HookDenied, match="not today"):
        await (await running(open_crib)).environment()


async def test_a_secret_that_is_gone_is_said(open_crib: Crib) -> None:
    ctx = await running(open_crib)
    await open_crib.services.secrets.remove("admin", "API")

    with pytest.raises(ToolUnavailable, match="names the secret API"):
        await ctx.environment()
