"""server-everything of the registry behind a service: all that it can do, asked for and answered."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

from tests.conformance.mcp_servers import package
from tests.conformance.netns_servers import island, needs_island
from tests.conformance.paths import conformance
from tests.support import http_servers
from tests.support.mcp_service import ALLOW_MCP, ask_of, begun, call, crib, done, ended, server_of
from tests.support.services import KEY, RunningService

pytestmark = conformance

ALL = {"all": package("everything", "stdio")}
GATEWAY = {"permission": "network", "pattern": "*", "action": "allow"}


async def test_it_is_listed_with_all_it_has(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        view = await server_of(service, "all")
        tools = {tool["name"]: tool for tool in (await service.client.get("/v1/tools")).json()["data"]}
        kinds = {kind: await listed(service, kind) for kind in ("resources", "templates", "prompts")}

    assert (view["protocol_version"], view["invalid_tools"]) == ("2025-11-25", [])
    assert view["instructions"].startswith("# Everything Server")
    ours = {name for name in tools if name.startswith("mcp__all__")}
    assert view["tools"] == len(ours)
    assert {"mcp__all__get_sum", "mcp__all__get_roots_list", "mcp__all__trigger_elicitation_request"} <= ours
    assert tools["mcp__all__get_sum"]["effect"] == "read"
    assert "features.md" in {resource["name"] for resource in kinds["resources"]}
    assert {template["name"] for template in kinds["templates"]} == {"Dynamic Text Resource", "Dynamic Blob Resource"}
    assert {prompt["name"] for prompt in kinds["prompts"]} >= {"simple-prompt", "args-prompt"}


async def test_simple_tools_answer(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        echoed = await done(service, "mcp__all__echo", {"message": "hello"})
        summed = await done(service, "mcp__all__get_sum", {"a": 2, "b": 40})
        weather = await done(service, "mcp__all__get_structured_content", {"location": "Chicago"})
        wrong = await call(service, "mcp__all__get_sum", {"a": "two", "b": 40})

    assert echoed["output"] == "Echo: hello"
    assert summed["output"] == "The sum of 2 and 40 is 42."
    assert set(weather["structured"]) == {"temperature", "conditions", "humidity"}
    assert json.loads(weather["output"]) == weather["structured"]
    assert (wrong["status"], wrong["error"]["code"]) == ("error", "InvalidArgs")


async def test_it_gets_no_more_of_our_environment_than_it_is_given(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATORS_OWN", "not for servers")
    servers = {"all": package("everything", "stdio", env={"FOR_IT": "given"})}

    async with crib(data_dir, servers) as service:
        seen = json.loads((await done(service, "mcp__all__get_env"))["output"])

    assert seen["FOR_IT"] == "given"
    assert "OPERATORS_OWN" not in seen


async def test_pictures_links_and_resources_come_along(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        picture = await done(service, "mcp__all__get_tiny_image")
        noted = await done(service, "mcp__all__get_annotated_message", {"messageType": "error", "includeImage": True})
        links = await done(service, "mcp__all__get_resource_links", {"count": 2})
        reference = await done(service, "mcp__all__get_resource_reference", {"resourceType": "Blob", "resourceId": 3})

    assert [file["mime"] for file in picture["attachments"]] == ["image/png"]
    assert "Error: Operation failed" in noted["output"]
    assert [file["mime"] for file in noted["attachments"]] == ["image/png"]
    assert len(re.findall(r"demo://resource/dynamic/(?:text|blob)/\d", links["output"])) == 2
    assert "demo://resource/dynamic/blob/3" in json.dumps(reference)


async def test_progress_is_told_while_it_goes_on(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        result = await call(service, "mcp__all__trigger_long_running_operation", {"duration": 0.4, "steps": 4})
        told = [event for event in service.events(result["id"]) if event["type"] == "call.progress"]

    assert "Duration: 0.4 seconds, Steps: 4" in result["result"]["output"]
    steps = [json.loads(event["data"])["metadata"] for event in told]
    assert steps[-1]["progress"] == steps[-1]["total"] == 4


async def test_a_form_is_answered_over_http(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        id = await begun(service, "mcp__all__trigger_elicitation_request")
        ask = await ask_of(service, id)
        content = {"name": "Ann", "check": True, "email": "ann@example.com", "integer": 7, "number": 1.5}
        wrong = await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {"name": 5}})
        right = await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": content})
        result = await ended(service, id)

        refused = await begun(service, "mcp__all__trigger_elicitation_request")
        second = await ask_of(service, refused)
        await service.client.post(f"/v1/asks/{second['id']}/answer", json={"action": "decline"})
        declined = await ended(service, refused)

    assert ask["kind"] == "elicitation"
    assert wrong.status_code == 422
    assert right.status_code == 200
    assert result["status"] == "completed"
    assert "- Name: Ann" in result["result"]["output"]
    assert "- Favorite Number: 1.5" in result["result"]["output"]
    assert "User declined" in declined["result"]["output"]


async def test_a_page_to_open_is_agreed_to_over_http(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        id = await begun(service, "mcp__all__trigger_url_elicitation", {"url": "https://example.com/sign-in"})
        ask = await ask_of(service, id)
        await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {}})
        result = await ended(service, id)

    assert "https://example.com/sign-in" in json.dumps(ask)
    assert "User completed the URL elicitation flow" in result["result"]["output"]


async def test_a_page_that_is_wanted_first_is_shown_first(data_dir: Path) -> None:
    arguments = {"url": "https://example.com/sign-in", "errorPath": True}
    async with crib(data_dir, ALL) as service:
        id = await begun(service, "mcp__all__trigger_url_elicitation", arguments)
        ask = await ask_of(service, id)
        await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"action": "decline"})
        result = await ended(service, id)

    assert ask["metadata"]["url"] == "https://modelcontextprotocol.io"
    assert (result["status"], result["error"]["code"]) == ("error", "McpError")
    assert "This request requires browser-based authorization." in result["error"]["message"]


async def test_without_a_gateway_there_is_no_model_to_ask(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        refused = await call(service, "mcp__all__trigger_sampling_request", {"prompt": "Why?"})

    assert (refused["status"], refused["error"]["code"]) == ("error", "McpError")
    assert "no LLM gateway is configured" in refused["error"]["message"]


async def test_with_a_gateway_a_model_is_asked_once_a_person_agreed(data_dir: Path) -> None:
    said = {"model": "tiny-1", "choices": [{"message": {"content": "Because."}, "finish_reason": "stop"}]}
    page = http_servers.reply(json.dumps(said).encode(), "200 OK", "Content-Type: application/json")
    asking = {"permission": "mcp", "pattern": "all/sampling:*", "action": "ask"}
    async with (
        http_servers.serving({"/v1/chat/completions": page}) as gateway,
        crib(
            data_dir,
            ALL,
            llm={"url": gateway.url("/v1"), "model": "tiny"},
            rules=[ALLOW_MCP, asking],
            private_networks=["127.0.0.0/8"],
        ) as service,
    ):
        id = await begun(service, "mcp__all__trigger_sampling_request", {"prompt": "Why?", "maxTokens": 9})
        ask = await ask_for_permission(service)
        await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"decision": "allow_once"})
        result = await ended(service, id)
        [asked] = gateway.seen

    assert result["status"] == "completed", result
    assert "Because." in result["result"]["output"]
    assert '"model": "tiny-1"' in result["result"]["output"]
    body = json.loads(asked.body)
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("tiny", 9, 0.7)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "Why?" in body["messages"][1]["content"]


async def test_it_is_told_the_operators_roots(data_dir: Path, tmp_path: Path) -> None:
    async with crib(data_dir, ALL, mcp={"roots": [str(tmp_path)]}) as service:
        roots = await done(service, "mcp__all__get_roots_list")

    assert tmp_path.as_uri() in roots["output"]


async def test_a_tool_that_takes_its_time_is_followed_to_its_end(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        result = await done(service, "mcp__all__simulate_research_query", {"topic": "hats"})

    assert "# Research Report: hats" in result["output"]
    assert "Stage 4: Generating report" in result["output"]


async def test_a_tool_that_takes_its_time_can_ask_meanwhile(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        id = await begun(service, "mcp__all__simulate_research_query", {"topic": "python", "ambiguous": True})
        ask = await ask_of(service, id)
        await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {"interpretation": "snake"}})
        result = await ended(service, id)

    assert result["status"] == "completed", result
    assert "# Research Report: python (snake)" in result["result"]["output"]


async def test_resources_and_prompts_are_read_over_http(data_dir: Path) -> None:
    async with crib(data_dir, ALL) as service:
        text = await read(service, "demo://resource/dynamic/text/7")
        document = await read(service, "demo://resource/static/document/features.md")
        nothing = await service.client.get(
            "/v1/mcp/resources/read", params={"server": "all", "uri": "demo://resource/nothing"}
        )
        prompt = await service.client.post(
            "/v1/mcp/prompts",
            json={"server": "all", "name": "args-prompt", "arguments": {"city": "Oslo", "state": "none"}},
        )
        tool = await done(service, "read_mcp_resource", {"server": "all", "uri": "demo://resource/dynamic/text/8"})

    assert text["contents"][0]["text"].startswith("Resource 7: This is a plaintext resource")
    assert document["contents"][0]["mimeType"] == "text/markdown"
    assert nothing.status_code == 502
    assert "Oslo" in prompt.json()["messages"][0]["content"]["text"]
    assert "Resource 8" in tool["output"]


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")  # they are what is tested
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_clients_of_the_door_get_completions_updates_and_logs(data_dir: Path, mode: str) -> None:
    uri = "demo://resource/dynamic/text/1"
    logs: list[Any] = []
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    async def heard(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.put_nowait(message.params.uri)

    async with (
        crib(data_dir, ALL) as service,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as http,
        Client(
            streamable_http_client(f"{service.url}/mcp", http_client=http),
            mode=mode,
            logging_callback=logged,
            log_level="debug" if mode == "auto" else None,
            message_handler=heard,
        ) as client,
    ):
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        completed = await client.complete(
            types.PromptReference(name="mcp__all__completable_prompt"), {"name": "department", "value": "E"}
        )
        if mode == "legacy":
            await client.subscribe_resource(uri)
            await client.call_tool("mcp__all__toggle_subscriber_updates", {})
            async with asyncio.timeout(60):
                told = await updated.get()
        else:
            async with client.listen(resource_subscriptions=[uri]) as subscription:
                await client.call_tool("mcp__all__toggle_subscriber_updates", {})
                async with asyncio.timeout(60):
                    told = getattr(await anext(aiter(subscription)), "uri", "")
        await client.call_tool("mcp__all__toggle_simulated_logging", {})

    assert "mcp__all__completable_prompt" in prompts
    assert any("message" in str(line) for line in logs)
    assert completed.completion.values == ["Engineering"]
    assert told == uri


@needs_island
@pytest.mark.parametrize(("transport", "kind", "path"), [("streamableHttp", "http", "/mcp"), ("sse", "sse", "/sse")])
async def test_it_works_over_http_too(data_dir: Path, tmp_path: Path, transport: str, kind: str, path: str) -> None:
    command = package("everything", transport)
    async with island(tmp_path, command["command"], *command["args"]) as port:
        servers = {"all": {"kind": kind, "url": f"http://127.0.0.1:{port}{path}"}}
        async with crib(data_dir, servers, private_networks=["127.0.0.0/8"]) as service:
            summed = await done(service, "mcp__all__get_sum", {"a": 1, "b": 2})
            slow = await call(service, "mcp__all__trigger_long_running_operation", {"duration": 0.2, "steps": 2})
            told = [event for event in service.events(slow["id"]) if event["type"] == "call.progress"]
            id = await begun(service, "mcp__all__trigger_elicitation_request")
            ask = await ask_of(service, id)
            await service.client.post(f"/v1/asks/{ask['id']}/answer", json={"content": {"name": "Ann"}})
            asked = await ended(service, id)
            text = await read(service, "demo://resource/dynamic/text/7")

    assert summed["output"] == "The sum of 1 and 2 is 3."
    assert slow["status"] == "completed"
    assert told
    assert "- Name: Ann" in asked["result"]["output"]
    assert text["contents"][0]["text"].startswith("Resource 7")


async def listed(service: RunningService, kind: str) -> list[dict[str, Any]]:
    answer = await service.client.get(f"/v1/mcp/{kind}", params={"server": "all"})
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def read(service: RunningService, uri: str) -> dict[str, Any]:
    answer = await service.client.get("/v1/mcp/resources/read", params={"server": "all", "uri": uri})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def ask_for_permission(service: RunningService) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            asks = (await service.client.get("/v1/asks", params={"status": "open"})).json()["data"]
            if asks:
                ask: dict[str, Any] = asks[0]
                assert ask["kind"] == "permission"
                return ask
            await asyncio.sleep(0.02)
