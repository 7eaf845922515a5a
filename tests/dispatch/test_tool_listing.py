"""Which tools a caller gets to see, and what they say to this caller. Over real HTTP, with toy tools."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field

from app.core.llm_models import shell_variant, takes_patches
from app.core.principals import Bounds, Key, Scope, digest
from app.core.results import Result
from app.core.sessions import Session
from app.core.tools import Alias, Audience, Context, Effect, Ready, Tool, typed
from app.dispatch.tools.listing import ToolFilter
from app.store import principals, sessions
from tests.support.services import RunningService
from tests.support.toy_tools import Toys


class MailArgs(BaseModel, extra="forbid"):
    recipient_address: str = Field(default="", description="Who gets it.")


async def nothing(args: Any, ctx: Context) -> Result:
    return Result()


def toy(name: str, description: str = "A toy.", **more: Any) -> Tool:
    options: dict[str, Any] = {"effect": Effect.READ, "needs": lambda args, scope: [], "run": nothing} | more
    return typed(MailArgs, name=name, description=description, **options)


async def about(audience: Audience) -> Ready:
    if audience.session == "closed":
        return Ready(reason="Not in this session.")
    return Ready(description=f"For {audience.model}, {audience.agent}.", schema={"type": "object", "title": "own"})


class Shelf(Toys):
    """Toys made for being listed."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (
            toy("apply_patch", "Change files by a patch.", suits=lambda to: takes_patches(to.model)),
            toy("edit_file", "Change a file.", suits=lambda to: not takes_patches(to.model), effect=Effect.WRITE),
            toy("shell", "Run words.", suits=lambda to: shell_variant(to.model) == "shell"),
            toy("shell_command", "Run a line.", suits=lambda to: shell_variant(to.model) == "shell_command"),
            toy("gemini_only", suits=lambda to: to.provider in (None, "google"), source="shop"),
            toy("planners_only", suits=lambda to: to.agent in (None, "plan")),
            toy("send_mail", "Send a letter to somebody.", aliases=(Alias("mail"),), effect=lambda args: Effect.READ),
            toy("changing", init=about),
        )


@pytest.fixture
async def service(data_dir: Path) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, Shelf())
    await service.open()
    yield service
    await service.close()


async def names(client: httpx.AsyncClient, **params: Any) -> list[str]:
    answer = await client.get("/v1/tools", params=params)
    assert answer.status_code == 200, answer.text
    return [tool["name"] for tool in answer.json()["data"]]


ALWAYS = ["changing", "gemini_only", "planners_only", "send_mail"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"model": "gpt-5.1"}, [*ALWAYS, "apply_patch", "shell_command"]),
        ({"model": "gpt-4o"}, [*ALWAYS, "edit_file", "shell"]),
        ({"model": "openai/gpt-oss-20b"}, [*ALWAYS, "edit_file", "shell"]),
        ({"model": "claude-sonnet-4-5"}, [*ALWAYS, "edit_file", "shell_command"]),
        ({}, [*ALWAYS, "edit_file", "shell_command"]),
        ({"provider": "google"}, [*ALWAYS, "edit_file", "shell_command"]),
        ({"provider": "openai"}, ["changing", "planners_only", "send_mail", "edit_file", "shell_command"]),
        ({"agent": "build"}, ["changing", "gemini_only", "send_mail", "edit_file", "shell_command"]),
        ({"source": "shop"}, ["gemini_only"]),
        ({"source": "nowhere"}, []),
        ({"effect": "write"}, ["edit_file", "send_mail"]),
        ({"effect": "read", "source": "builtin", "agent": "build"}, ["changing", "shell_command"]),
    ],
)
async def test_a_listing_holds_what_suits(service: RunningService, asked: dict[str, str], found: list[str]) -> None:
    assert await names(service.client, **asked) == sorted(found)


async def test_a_session_stands_for_its_model_and_its_agent(service: RunningService) -> None:
    session = Session("admin", "ses_a", agent="plan", model="gpt-5.1")
    await service.services.writer.submit(lambda batch: sessions.add(batch, session))

    assert await names(service.client, session="ses_a") == await names(service.client, model="gpt-5.1", agent="plan")
    assert "edit_file" in await names(service.client, session="ses_a", model="gpt-4o")
    missing = await service.client.get("/v1/tools", params={"session": "ses_b"})
    assert (missing.status_code, missing.json()["code"]) == (404, "NotFound")


async def test_a_tool_may_say_something_else_to_each(service: RunningService) -> None:
    await service.services.writer.submit(lambda batch: sessions.add(batch, Session("admin", "closed")))

    async def shown(**params: Any) -> dict[str, Any]:
        listed = (await service.client.get("/v1/tools", params=params)).json()["data"]
        [tool] = [tool for tool in listed if tool["name"] == "changing"]
        return {name: tool[name] for name in ("description", "parameters", "available", "reason")}

    own = {"type": "object", "title": "own"}
    anybody = {"description": "For None, None.", "parameters": own, "available": True, "reason": None}
    assert await shown() == anybody
    assert await shown(model="gpt-5", agent="plan") == anybody | {"description": "For gpt-5, plan."}
    assert await shown() == anybody
    closed = await shown(session="closed")
    assert (closed["available"], closed["reason"]) == (False, "Not in this session.")
    assert closed["description"] == "A toy."


async def test_a_query_ranks_and_limits(service: RunningService) -> None:
    found = await names(service.client, q="change files")
    best = await names(service.client, q="change files", limit=1, model="gpt-5.1")

    assert found == ["edit_file"], "apply_patch does not suit whoever it is"
    assert best == ["apply_patch"]
    assert await names(service.client, q="recipient", source="shop") == ["gemini_only"]
    assert await names(service.client, q="nothing of the kind") == []


async def test_pages_go_on_where_the_one_before_ended(service: RunningService) -> None:
    all_names, seen, cursor = await names(service.client), list[str](), None
    while True:
        params = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        page = (await service.client.get("/v1/tools", params=params)).json()
        assert len(page["data"]) <= 4
        seen += [tool["name"] for tool in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert seen == all_names
    assert len(all_names) == 6


async def test_a_compact_listing_is_for_a_small_context(service: RunningService) -> None:
    answer = await service.client.get("/v1/tools", params={"fields": "name,description", "source": "shop"})

    assert answer.json() == {"data": [{"name": "gemini_only", "description": "A toy."}], "next_cursor": None}


async def test_wrong_parameters_are_refused(service: RunningService) -> None:
    for params in ({"effect": "none"}, {"limit": "501"}, {"limit": "0"}, {"fields": "schema"}, {"q": ""}):
        assert (await service.client.get("/v1/tools", params=params)).status_code == 422


async def test_an_alias_is_described_as_the_tool_it_is(service: RunningService) -> None:
    mail = (await service.client.get("/v1/tools/mail")).json()

    assert (mail["name"], mail["aliases"]) == ("send_mail", ["mail"])


@pytest.mark.parametrize("rule", [{"permission": "send_mail"}, {"permission": "s*", "pattern": "*"}])
async def test_what_is_denied_whatever_it_is_used_for_is_not_listed(
    service: RunningService, rule: dict[str, str]
) -> None:
    await service.close()
    service.settings["rules"] = [rule | {"action": "deny"}]
    await service.open()

    assert "send_mail" not in await names(service.client)
    assert (await service.client.get("/v1/tools/send_mail")).status_code == 404
    assert (await service.client.get("/v1/tools/mail")).status_code == 404
    assert await names(service.client, q="letter") == []


async def test_a_key_that_is_bound_to_tools_sees_no_others(service: RunningService) -> None:
    bounds = Bounds(tools=("send_*", "edit_file"))
    key = Key("key_1", "ann", "", frozenset({Scope.CALLS_READ, Scope.TOOLS_WRITE}), digest("tk_ann"), 1, bounds=bounds)
    await service.services.writer.submit(lambda batch: principals.add_key(batch, key))
    service.services.keyring.put(key)

    async with service.client_of("tk_ann") as ann:
        assert await names(ann) == ["edit_file", "send_mail"]
        assert (await ann.get("/v1/tools/changing")).status_code == 404
        tool = {"kind": "client", "name": "other_tool", "description": "x"}
        assert (await ann.post("/v1/tools", json=tool)).status_code == 403
        assert (await ann.delete("/v1/tools/changing")).status_code == 404


async def test_hooks_have_the_last_word_on_what_a_tool_says(service: RunningService) -> None:
    async def shorten(view: dict[str, Any]) -> dict[str, Any]:
        return view | {"description": view["description"][:5], "owner": "nobody asks a hook for this"}

    service.services.listing._redefine = shorten
    key = service.services.keyring.find(service.settings["api_key"])
    assert key is not None

    [tool] = await service.services.listing.tools(Session("admin", "default"), key, ToolFilter(source="shop"))

    assert (tool["description"], tool["owner"]) == ("A toy", None)


async def test_the_tool_asked_for_is_the_one_that_is_called(service: RunningService) -> None:
    """What is listed under a principal's own name is what a call by that name runs."""
    registry = service.services.dispatcher.registry
    registry.add(replace(toy("mine", "Ann's own."), owner="ann"))
    registry.add(replace(toy("mine", "The admin's own."), owner="admin"))

    assert (await service.client.get("/v1/tools/mine")).json()["description"] == "The admin's own."
    assert (await service.client.get("/v1/tools/mine")).json()["owner"] == "admin"
