"""Elicitations over HTTP: a form or a page that an MCP server wants, shown, checked and answered."""

from typing import Any

import httpx
import pytest

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool
from tests.support.ask_calls import answer, asked_by, ended, over
from tests.support.services import RunningService
from tests.support.toy_tools import Toys

FORM = {
    "server": "shop",
    "mode": "form",
    "message": "How many?",
    "requested_schema": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        },
        "required": ["count"],
    },
}
PAGE = {"server": "shop", "mode": "url", "message": "Pay, please.", "url": "https://example.com/pay"}


def _needs(args: Any, scope: PathScope) -> list[Need]:
    return []


async def _run(args: Any, ctx: Context) -> Result:
    said = await ctx.elicit(args["shows"])
    return Result("asked", structured={"content": said.content, "action": said.action})


class ElicitingToys(Toys):
    """The toys, and one that has a person asked what it is told."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        elicit = Tool(
            name="elicit",
            title="Elicit",
            description="Asks.",
            schema={"type": "object"},
            parse=lambda args: args,
            needs=_needs,
            run=_run,
            effect=Effect.READ,
            lane=Lane.NONE,
        )
        return (*super().tools, elicit)


@pytest.fixture
def toys() -> Toys:
    return ElicitingToys()


async def eliciting(client: httpx.AsyncClient, shows: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return await asked_by(client, {"tool": "elicit", "arguments": {"shows": shows}})


async def test_a_form_is_shown_filled_in_and_completed_with_its_defaults(client: httpx.AsyncClient) -> None:
    call, ask = await eliciting(client, FORM)

    said = await answer(client, ask, content={"count": "3"})
    view = await ended(client, call)

    assert (ask["kind"], ask["metadata"], ask["needs"], ask["questions"]) == ("elicitation", FORM, [], [])
    assert said.status_code == 200
    assert said.json()["answer"]["content"] == {"count": 3, "colour": "red"}
    assert view["result"]["structured"] == {"content": {"count": 3, "colour": "red"}, "action": None}


async def test_what_is_no_answer_is_refused_in_a_sentence_and_changes_nothing(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (FORM, {"content": {}}, "Required: count."),
        (FORM, {"content": {"count": 0}}, "count must be at least 1."),
        (FORM, {"content": {"count": 1, "colour": "green"}}, "colour must be one of red, blue."),
        (FORM, {"content": {"count": 1, "size": 3}}, "There is no field size; the fields are count, colour."),
        (FORM, {"decision": "allow_once"}, "is about no permission: answer with `content`, or refuse with `action`."),
        (
            PAGE,
            {"content": {"card": "4242"}},
            "on a web page of its own: `{}` agrees to open it.",
        ),
    ]
    for shows, said, sentence in cases:
        with subtests.test(shows=shows, said=said, sentence=sentence):
            _, ask = await eliciting(client, shows)

            refused = await answer(client, ask, **said)

            assert refused.status_code == 422
            assert sentence in refused.json()["detail"]
            assert (await client.get(f"/v1/asks/{ask['id']}")).json()["status"] == "open"


async def test_a_page_is_shown_and_agreed_to(client: httpx.AsyncClient) -> None:
    call, ask = await eliciting(client, PAGE)

    said = await answer(client, ask, content={})

    assert ask["metadata"] == PAGE
    assert said.status_code == 200
    assert (await ended(client, call))["result"]["structured"] == {"content": {}, "action": None}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_who_does_not_want_to_says_so(client: httpx.AsyncClient, action: str) -> None:
    call, ask = await eliciting(client, FORM)

    said = await answer(client, ask, action=action)

    assert said.json()["answer"]["action"] == action
    assert (await ended(client, call))["result"]["structured"] == {"content": None, "action": action}


async def test_a_call_that_waits_for_input_is_seen_to_and_its_ask_ends_with_it(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    call, ask = await eliciting(client, FORM)
    waiting = (await client.get(f"/v1/calls/{call}")).json()

    await client.post(f"/v1/calls/{call}/cancel")

    assert (waiting["status"], waiting["waiting"]) == ("running", "input")
    assert (await over(service, ask))["status"] == "expired"
    late = await answer(client, ask, content={"count": 1})
    assert late.status_code == 409
