"""Tools ready to be pasted into a provider's request, over HTTP."""

import json
from dataclasses import replace

import httpx
import pytest

from app.core.tools import Audience, Ready
from app.providers.registry import NAMES
from tests.support.toy_tools import Toys


async def out_of_order(audience: Audience) -> Ready:
    return Ready(reason="It is out of order.")


@pytest.fixture
def toys() -> Toys:
    toys = Toys()
    toys.more.append(replace(toys.tools[0], name="broken", init=out_of_order))
    return toys


async def test_the_answer_is_the_value_of_the_tools_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/tools", params={"format": "anthropic", "names": "echo,note", "cache": "ephemeral"})

    assert [tool["name"] for tool in answer.json()] == ["echo", "note"]
    assert [tool.get("cache_control") for tool in answer.json()] == [None, {"type": "ephemeral"}]


async def test_every_dialect_offers_every_tool_again_and_again_the_same(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    for format in NAMES:
        with subtests.test(format=format):
            listed = [tool["name"] for tool in (await client.get("/v1/tools")).json()["data"] if tool["available"]]

            first, again = [await client.get("/v1/tools", params={"format": format}) for _ in range(2)]

            assert first.status_code == 200
            assert first.content == again.content
            assert [name for name in listed if name not in first.text] == []


async def test_a_dialect_nobody_speaks_is_not_found(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/tools", params={"format": "klingon"})

    assert (answer.status_code, answer.json()["code"]) == (404, "NotFound")


async def test_strict_is_given_up_with_a_warning(client: httpx.AsyncClient) -> None:
    free = {"type": "object", "properties": {"any": {"type": "object"}}}
    body = {"kind": "client", "name": "free_form", "description": "Takes anything.", "parameters": free}
    await client.post("/v1/tools", json=body)

    answer = await client.get("/v1/tools", params={"format": "openai-chat", "strict": "on", "names": "free_form,note"})

    by_name = {tool["function"]["name"]: tool["function"] for tool in answer.json()}
    assert by_name["note"]["strict"] is True
    assert by_name["free_form"]["parameters"] == free
    assert not by_name["free_form"].get("strict")
    assert "free_form" in json.loads(answer.headers["Toolcrib-Warnings"])[0]


async def test_the_request_has_the_choice_in_the_providers_words(client: httpx.AsyncClient) -> None:
    params = {"names": "echo", "shape": "request", "tool_choice": "required", "parallel": "false"}

    chat = (await client.get("/v1/tools", params=params | {"format": "openai-chat"})).json()
    claude = (await client.get("/v1/tools", params=params | {"format": "anthropic"})).json()
    named = (await client.get("/v1/tools", params=params | {"format": "openai-chat", "tool_choice": "echo"})).json()

    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    assert claude["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert named["tool_choice"] == {"type": "function", "function": {"name": "echo"}}
    assert [tool["name"] for tool in claude["tools"]] == ["echo"]


async def test_a_tool_that_cannot_be_used_is_not_offered(client: httpx.AsyncClient) -> None:
    listed = {tool["name"]: tool["available"] for tool in (await client.get("/v1/tools")).json()["data"]}
    offered = (await client.get("/v1/tools", params={"format": "openai-chat"})).json()

    assert listed["broken"] is False
    assert "broken" not in [tool["function"]["name"] for tool in offered]


async def test_nulls_of_a_strict_schema_mean_left_out(client: httpx.AsyncClient) -> None:
    [tool] = (
        await client.get("/v1/tools", params={"format": "openai-chat", "strict": "on", "names": "wait_free"})
    ).json()
    arguments = {name: "w" if name == "name" else None for name in tool["function"]["parameters"]["properties"]}
    call = {"id": "call_aK", "function": {"name": "wait_free", "arguments": json.dumps(arguments)}}

    run = await client.post("/v1/run/openai-chat", params={"wait": 0}, json={"tool_calls": [call]})

    assert run.json()["calls"][0]["arguments"] == {"name": "w"}
