"""MCP servers over HTTP: added, seen by those who may, connected anew, removed, and never telling a secret."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.tools import Tool
from app.tools import read_mcp_resource
from tests.api.test_api_tools import assert_problem
from tests.support.services import RunningService, listening
from tests.support.toy_tools import Toys

SHOP = Path(__file__).parent.parent / "mcp" / "catalog_server.py"
WRITER = ["calls:run", "calls:read", "tools:write"]
PATH = "/v1/mcp/servers"
CANARY = "canary-in-the-coal-mine"
NOWHERE = {"name": "docs", "url": "https://docs.invalid/mcp"}


def shop(name: str = "shop", *args: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": sys.executable, "args": [str(SHOP), *args], **fields}


class ReadingToys(Toys):
    """Toys, and the tool that a route uses."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (*super().tools, read_mcp_resource.tool)


@pytest.fixture
def toys() -> Toys:
    return ReadingToys()


@pytest.fixture
async def service(data_dir: Path, toys: Toys) -> AsyncIterator[RunningService]:
    service = RunningService(data_dir, toys, mcp={"stdio_over_rest": True})
    await service.open()
    yield service
    await service.close()


async def client_for(service: RunningService, principal: str, scopes: list[str], **bounds: Any) -> httpx.AsyncClient:
    body = {"principal": principal, "scopes": scopes, "bounds": bounds}
    answer = await service.client.post("/v1/keys", json=body)
    assert answer.status_code == 201, answer.text
    return service.client_of(answer.json()["token"])


@pytest.fixture
async def ann(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "ann", WRITER) as client:
        yield client


@pytest.fixture
async def bob(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "bob", WRITER) as client:
        yield client


async def add(client: httpx.AsyncClient, body: dict[str, Any], **params: Any) -> dict[str, Any]:
    answer = await client.post(PATH, json=body, params=params)
    assert answer.status_code == 201, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def names(client: httpx.AsyncClient) -> list[str]:
    return [view["name"] for view in (await client.get(PATH)).json()["data"]]


async def test_a_program_is_started_its_tools_are_listed_and_called_and_it_is_removed(
    client: httpx.AsyncClient,
) -> None:
    view = await add(client, shop(env={"SHOP_GREETING": "we are open"}))
    listed = (await client.get(PATH)).json()
    one = (await client.get(f"{PATH}/shop")).json()
    tools = (await client.get("/v1/tools", params={"server": "shop"})).json()["data"]
    call = (await client.post("/v1/calls", json={"tool": "mcp__shop__echo", "arguments": {"text": "hi"}})).json()
    log = await client.get(f"{PATH}/shop/log")
    removed = await client.delete(f"{PATH}/shop")

    assert (view["state"], view["error"], view["owner"], view["source"]) == ("connected", None, None, "rest")
    assert (view["protocol_version"], view["instructions"]) == ("2025-11-25", "Buy nothing.")
    assert view["server_info"] == {"name": "shop", "version": "1.0"}
    assert (view["tools"], [tool["name"] for tool in view["invalid_tools"]]) == (2, ["broken"])
    assert view["definition"]["command"] == sys.executable
    assert (listed, one) == ({"data": [view], "next_cursor": None}, view)
    assert [tool["name"] for tool in tools] == ["mcp__shop__buy", "mcp__shop__echo"]
    assert {tool["server"] for tool in tools} == {"shop"}
    assert call["status"] == "completed"
    assert "hi" in call["result"]["output"]
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert "we are open" in log.text
    assert removed.status_code == 204
    assert (await client.get(PATH)).json()["data"] == []
    assert (await client.get("/v1/tools", params={"server": "shop"})).json()["data"] == []
    assert_problem(await client.get(f"{PATH}/shop"), 404, "NotFound")
    assert_problem(await client.get(f"{PATH}/shop/log"), 404, "NotFound")


async def test_a_server_that_does_not_come_up_is_added_all_the_same_and_says_why(client: httpx.AsyncClient) -> None:
    closed = await add(client, shop("closed", "refuse"))
    missing = await add(client, {"name": "missing", "command": "no-such-program-anywhere"})
    early = await add(client, shop("slow", "slow"), wait=0)

    assert (closed["state"], closed["tools"]) == ("failed", 0)
    assert closed["error"]
    assert "the shop is closed" in (await client.get(f"{PATH}/closed/log")).text
    assert (missing["state"], early["state"]) == ("failed", "starting")


async def test_a_server_is_there_again_after_a_restart(service: RunningService) -> None:
    await add(service.client, shop())

    await service.restart()
    answer = await service.client.post(f"{PATH}/shop/reconnect")

    assert (answer.status_code, answer.json()["state"]) == (200, "connected")


async def test_a_server_of_ones_own_is_nobody_elses_but_an_admin_looks_after_it(
    ann: httpx.AsyncClient, bob: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    view = await add(ann, NOWHERE, wait=0)
    theirs = await add(bob, NOWHERE | {"url": "https://bob.invalid/mcp"}, wait=0)

    assert (view["owner"], theirs["owner"]) == ("ann", "bob")
    assert view["definition"]["url"] == "https://docs.invalid/mcp"
    assert [one["owner"] for one in (await ann.get(PATH)).json()["data"]] == ["ann"]
    assert (await ann.get(f"{PATH}/docs", params={"principal": "bob"})).json()["owner"] == "ann"
    assert [one["owner"] for one in (await client.get(PATH)).json()["data"]] == ["ann", "bob"]
    assert (await client.get(f"{PATH}/docs", params={"principal": "bob"})).json()["owner"] == "bob"
    assert_problem(await client.delete(f"{PATH}/docs"), 404, "NotFound")
    assert_problem(await client.post(f"{PATH}/docs/reconnect"), 404, "NotFound")
    assert (await client.delete(f"{PATH}/docs", params={"principal": "ann"})).status_code == 204
    assert await names(ann) == []
    assert_problem(await ann.delete(f"{PATH}/docs"), 404, "NotFound")
    assert (await bob.delete(f"{PATH}/docs")).status_code == 204


async def test_everybody_sees_an_admins_server_but_not_how_it_is_reached(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, shop(env={"SHOP_GREETING": "psst"}))
    await add(client, NOWHERE, own=True, wait=0)

    [seen] = (await ann.get(PATH)).json()["data"]

    assert (seen["name"], seen["owner"], seen["definition"]) == ("shop", None, None)
    assert_problem(await ann.get(f"{PATH}/shop/log"), 403, "Forbidden")
    assert_problem(await ann.delete(f"{PATH}/shop"), 404, "NotFound")
    assert_problem(await ann.post(f"{PATH}/shop/reconnect"), 404, "NotFound")
    assert_problem(await ann.post(PATH, json=NOWHERE | {"name": "shop"}), 409, "NameTaken")
    assert_problem(await client.delete(f"{PATH}/docs"), 404, "NotFound")
    assert (await client.delete(f"{PATH}/docs", params={"own": True})).status_code == 204


async def test_a_taken_name_is_a_conflict_unless_it_shall_be_replaced(client: httpx.AsyncClient) -> None:
    await add(client, NOWHERE, wait=0)

    again = await client.post(PATH, json=NOWHERE)
    replaced = await client.post(PATH, json=shop("docs", replace=True))

    assert_problem(again, 409, "NameTaken", "docs is the name of")
    assert (replaced.status_code, replaced.json()["kind"], replaced.json()["state"]) == (200, "stdio", "connected")


async def test_a_configured_server_is_changed_only_in_the_configuration(data_dir: Path, toys: Toys) -> None:
    token = "a-token-of-some-length"
    servers = {"shop": shop(env={"GITHUB_TOKEN": token, "SHOP_GREETING": f"my token is {token}"}) | {"name": None}}
    service = RunningService(data_dir, toys, mcp={"servers": servers})
    await service.open()
    try:
        client = service.client
        view = (await client.post(f"{PATH}/shop/reconnect")).json()
        log = (await client.get(f"{PATH}/shop/log")).text
        removed = await client.delete(f"{PATH}/shop")
        replaced = await client.post(PATH, json=NOWHERE | {"name": "shop", "replace": True})
    finally:
        await service.close()

    assert (view["state"], view["source"], view["owner"]) == ("connected", "config", None)
    assert view["definition"]["env"] == {"GITHUB_TOKEN": "[redacted]", "SHOP_GREETING": "my token is [redacted]"}
    assert log.strip() == "my token is [redacted]"
    assert_problem(removed, 409, "NotRegistered")
    assert_problem(replaced, 409, "NameTaken")


async def test_a_program_takes_an_admin_and_the_operators_word(
    ann: httpx.AsyncClient, data_dir: Path, service: RunningService, toys: Toys
) -> None:
    by_ann = await ann.post(PATH, json=shop())
    await service.close()
    service.settings.pop("mcp")
    await service.open()
    by_admin = await service.client.post(PATH, json=shop())

    for refused in (by_ann, by_admin):
        assert_problem(refused, 403, "Forbidden", "mcp.stdio_over_rest = true")


async def test_scopes_and_bounds_count(service: RunningService, client: httpx.AsyncClient) -> None:
    await add(client, shop())
    async with (
        await client_for(service, "eve", ["calls:run", "calls:read"]) as reader,
        await client_for(service, "eve", WRITER, tools=["mcp__shop__e*"]) as bound,
        await client_for(service, "eve", WRITER, tools=["read_file"]) as elsewhere,
        await client_for(service, "eve", ["metrics"]) as scraper,
    ):
        for refused in (
            await reader.post(PATH, json=NOWHERE),
            await reader.delete(f"{PATH}/shop"),
            await reader.post(f"{PATH}/shop/reconnect"),
            await bound.post(PATH, json=NOWHERE | {"name": "mine"}),
            await bound.delete(f"{PATH}/shop"),
            await bound.post(f"{PATH}/shop/reconnect"),
            await scraper.get(PATH),
            await scraper.get(f"{PATH}/shop"),
        ):
            assert_problem(refused, 403, "Forbidden")
        assert (await names(reader), await names(bound), await names(elsewhere)) == (["shop"], ["shop"], [])
        assert_problem(await elsewhere.get(f"{PATH}/shop"), 404, "NotFound")
        assert_problem(await elsewhere.get("/v1/mcp/resources", params={"server": "shop"}), 404, "NotFound")


async def test_a_server_that_rules_deny_altogether_is_not_there(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, shop())
    await add(client, shop("second"))
    everybody = {"permission": "mcp", "action": "deny", "everybody": True}
    await client.post("/v1/rules", json=everybody | {"pattern": "shop/*"})

    assert await names(ann) == ["second"]
    assert_problem(await ann.get(f"{PATH}/shop"), 404, "NotFound")
    assert_problem(await ann.get("/v1/mcp/resources", params={"server": "shop"}), 404, "NotFound")
    assert_problem(await ann.post("/v1/mcp/prompts", json={"server": "shop", "name": "offer"}), 404, "NotFound")
    read = {"server": "shop", "uri": "shop://apples"}
    assert_problem(await ann.get("/v1/mcp/resources/read", params=read), 404, "NotFound")
    assert {item["server"] for item in (await ann.get("/v1/mcp/resources")).json()["data"]} == {"second"}
    await client.post("/v1/rules", json=everybody | {"pattern": "*"})
    assert await names(ann) == []
    assert (await ann.get("/v1/mcp/prompts")).json()["data"] == []
    assert await names(client) == ["second", "shop"]


async def test_resources_templates_and_prompts_are_listed_and_had(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, shop())

    first = (await ann.get("/v1/mcp/resources", params={"server": "shop"})).json()
    second = (await ann.get("/v1/mcp/resources", params={"server": "shop", "cursor": first["next_cursor"]})).json()
    every = (await ann.get("/v1/mcp/resources")).json()
    templates = (await ann.get("/v1/mcp/templates")).json()
    prompts = (await ann.get("/v1/mcp/prompts", params={"server": "shop"})).json()
    asked = {"server": "shop", "name": "offer", "arguments": {"fruit": "pears"}}
    filled = await ann.post("/v1/mcp/prompts", json=asked)

    apples = {"server": "shop", "uri": "shop://apples", "name": "apples"}
    logo = {"server": "shop", "uri": "shop://logo", "name": "logo", "mimeType": "image/png"}
    assert (first["data"], second) == ([apples], {"data": [logo], "next_cursor": None})
    assert (every["data"], every["next_cursor"]) == ([apples, logo], None)
    assert [one["uriTemplate"] for one in templates["data"]] == ["shop://{fruit}"]
    assert [one["name"] for one in prompts["data"]] == ["offer"]
    message = {"role": "user", "content": {"type": "text", "text": "Sell me pears."}}
    call = filled.headers["Toolcrib-Call"]
    assert filled.json() == {"server": "shop", "name": "offer", "messages": [message], "call": call}


async def test_a_resource_is_read_by_a_call_whole_and_with_its_bytes(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, shop())

    text = await ann.get("/v1/mcp/resources/read", params={"server": "shop", "uri": "shop://apples"})
    image = await ann.get("/v1/mcp/resources/read", params={"server": "shop", "uri": "shop://logo"})
    call = (await ann.get(f"/v1/calls/{text.headers['Toolcrib-Call']}")).json()

    assert text.json()["contents"][0]["text"] == "apples " * 20_000
    assert text.json()["call"] == call["id"]
    assert (call["tool"], call["status"]) == ("read_mcp_resource", "completed")
    assert [one["url"] for one in image.json()["attachments"]] == ["data:image/png;base64,iVBORw0KGgo="]


async def test_what_a_server_does_not_have_is_said_with_a_status(
    ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, shop())
    await add(client, shop("closed", "refuse"))

    unread = await ann.get("/v1/mcp/resources/read", params={"server": "shop", "uri": "shop://pears"})
    unknown = await ann.post("/v1/mcp/prompts", json={"server": "shop", "name": "nothing"})
    down = await ann.get("/v1/mcp/resources", params={"server": "closed"})

    assert_problem(unread, 502, "McpError")
    assert unread.json()["call"].startswith("call_")
    assert_problem(unknown, 502, "McpError")
    assert_problem(down, 503, "ToolUnavailable")
    for path in ("resources", "templates", "prompts"):
        assert_problem(await ann.get(f"/v1/mcp/{path}", params={"server": "nowhere"}), 404, "NotFound")
        assert_problem(await ann.get(f"/v1/mcp/{path}", params={"session": "nowhere"}), 404, "NotFound")
    assert_problem(await ann.get("/v1/mcp/resources/read", params={"server": "shop"}), 422, "InvalidRequest")


async def test_where_a_rule_asks_reading_waits_for_a_person(ann: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    await add(client, shop())
    rule = {"permission": "mcp", "pattern": "shop/resource:*", "action": "ask", "everybody": True}
    await client.post("/v1/rules", json=rule)
    params: dict[str, Any] = {"server": "shop", "uri": "shop://logo", "wait": 0}

    waiting = await ann.get("/v1/mcp/resources/read", params=params)
    rule_of_ann = {"permission": "mcp", "pattern": "shop/resource:*", "action": "deny", "everybody": True}
    await client.post("/v1/rules", json=rule_of_ann)
    denied = await ann.get("/v1/mcp/resources/read", params=params | {"wait": 5})

    assert waiting.status_code == 202
    assert waiting.headers["Location"] == f"/v1/calls/{waiting.json()['id']}"
    assert_problem(denied, 403, "PermissionDenied")


async def test_a_secret_of_the_configuration_stays_when_its_server_goes(data_dir: Path, toys: Toys) -> None:
    service = RunningService(data_dir, toys, secrets={"mcp_docs_token": {"env": "PATH"}})
    await service.open()
    try:
        await add(service.client, NOWHERE | {"auth": {"type": "bearer", "secret": "mcp_docs_token"}}, wait=0)
        removed = await service.client.delete(f"{PATH}/docs")
        refused = await service.client.post(PATH, json=NOWHERE | {"auth": {"type": "bearer", "token": CANARY}})
        secrets = (await service.client.get("/v1/secrets")).json()["data"]
    finally:
        await service.close()

    assert removed.status_code == 204
    assert_problem(refused, 409, "SecretTaken")
    assert [secret["name"] for secret in secrets] == ["mcp_docs_token"]


@pytest.mark.parametrize(
    ("authorization", "label"),
    [({"type": "bearer", "token": CANARY}, None), (CANARY, "my docs"), ({"token": CANARY}, "docs.invalid")],
    ids=["as the seed has it", "as OpenAI has it", "without a type"],
)
async def test_a_server_is_taken_as_it_stands_in_a_request_to_a_model(
    service: RunningService, ann: httpx.AsyncClient, authorization: Any, label: str | None
) -> None:
    body = {"type": "mcp", "server_url": "https://docs.invalid/mcp", "authorization": authorization}
    view = await add(ann, body | ({"server_label": label} if label else {}), wait=0)
    name = "my-docs" if label == "my docs" else "docs.invalid"
    secret = (await ann.get(f"/v1/secrets/mcp_{name}_token")).json()
    held = service.services.secrets.find("ann", f"mcp_{name}_token")
    stored = {"Accept": "application/json"}
    paths = (PATH, f"{PATH}/{name}", f"{PATH}/{name}/log", "/v1/events?after=0")
    shown = [(await ann.get(path, headers=stored)).text for path in paths]
    removed = await ann.delete(f"{PATH}/{name}")

    assert (view["name"], view["kind"]) == (name, "http")
    assert view["definition"]["auth"] == {"type": "bearer", "secret": f"mcp_{name}_token"}
    assert (secret["domains"], secret["global"]) == (["docs.invalid"], False)
    assert held is not None
    assert held[1] == CANARY
    assert CANARY not in "".join([str(view), *shown])
    assert removed.status_code == 204
    assert_problem(await ann.get(f"/v1/secrets/mcp_{name}_token"), 404, "NotFound")


async def test_all_a_model_may_be_told_about_a_server_is_understood(
    service: RunningService, ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    body = {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://docs.invalid/v1/sse",
        "server_description": "Where the docs are.",
        "connector_id": None,
        "headers": {"Authorization": f"Bearer {CANARY}", "X-Team": "blue", "X-Api-Key": "another-canary"},
        "allowed_tools": {"tool_names": ["search"]},
        "require_approval": {"always": {"tool_names": ["search", "fetch"]}},
        "defer_loading": True,
    }
    view = await add(ann, body, wait=0)
    again = await ann.post(PATH, json=body | {"require_approval": "always", "replace": True}, params={"wait": 0})
    everybodys = await add(client, body | {"server_label": "all", "require_approval": "never"}, wait=0)
    rules = [
        (rule["permission"], rule["pattern"], rule["action"]) for rule in (await ann.get("/v1/rules")).json()["data"]
    ]

    definition = view["definition"]
    assert (definition["kind"], definition["allowed_tools"]) == ("sse", ["search"])
    assert definition["headers"] == {
        "Authorization": {"secret": "mcp_docs_Authorization", "form": "bearer"},
        "X-Team": "blue",
        "X-Api-Key": {"secret": "mcp_docs_X-Api-Key", "form": "plain"},
    }
    held = {
        name: service.services.secrets.find("ann", name) for name in ("mcp_docs_Authorization", "mcp_docs_X-Api-Key")
    }
    assert [found and found[1] for found in held.values()] == [CANARY, "another-canary"]
    assert again.status_code == 200
    assert rules == [("mcp", f"docs/{tool}", "ask") for tool in ("search", "fetch", "*")]
    assert everybodys["owner"] is None
    assert service.services.secrets.find("ann", "mcp_all_Authorization") is None
    assert service.services.secrets.find("admin", "mcp_all_Authorization") is not None
    await ann.delete(f"{PATH}/docs")
    assert (await ann.get("/v1/secrets")).json()["data"] == [
        secret.view() for secret in service.services.secrets.listed("ann") if secret.is_global
    ]


async def test_secrets_in_clear_of_a_program_are_kept_and_come_to_it(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    env = {"SHOP_GREETING": "open", "SHOP_TOKEN": CANARY, "TZ": {"secret": "ZONE"}}
    await client.put("/v1/secrets/ZONE", json={"value": "Europe/Vienna"}, params={"global": True})

    view = await add(client, shop(env=env))

    made = {"SHOP_GREETING": "open", "SHOP_TOKEN": {"secret": "mcp_shop_SHOP_TOKEN"}, "TZ": {"secret": "ZONE"}}
    assert view["definition"]["env"] == made
    assert view["state"] == "connected"
    assert CANARY[::-1] in (await client.get(f"{PATH}/shop/log")).text
    newer = await client.post(PATH, json=shop(env=env | {"SHOP_TOKEN": "a-newer-canary"}, replace=True))
    assert (newer.status_code, newer.json()["definition"], newer.json()["state"]) == (
        200,
        view["definition"],
        "connected",
    )
    assert "a-newer-canary"[::-1] in (await client.get(f"{PATH}/shop/log")).text
    await client.delete(f"{PATH}/shop")
    assert service.services.secrets.find("admin", "mcp_shop_SHOP_TOKEN") is None
    assert service.services.secrets.find("*", "ZONE") is not None


async def test_what_is_replaced_takes_its_secrets_along(service: RunningService, ann: httpx.AsyncClient) -> None:
    body = {"name": "docs", "url": "https://docs.invalid/mcp", "auth": {"type": "bearer", "token": CANARY}}
    await add(ann, body, wait=0)

    changed = await ann.post(
        PATH, params={"wait": 0}, json=body | {"replace": True, "auth": {"type": "bearer", "token": "new-canary"}}
    )
    kept = service.services.secrets.find("ann", "mcp_docs_token")
    without = await ann.post(PATH, params={"wait": 0}, json=NOWHERE | {"replace": True})

    assert (changed.status_code, without.status_code) == (200, 200)
    assert kept is not None
    assert kept[1] == "new-canary"
    assert without.json()["definition"]["auth"] is None
    assert service.services.secrets.find("ann", "mcp_docs_token") is None


async def test_a_server_that_is_not_added_leaves_nothing_behind(
    service: RunningService, ann: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await add(client, {"name": "docs", "url": "https://docs.invalid/mcp"}, wait=0)
    taken = {"type": "mcp", "server_label": "DOCS", "server_url": "https://docs.invalid/", "authorization": CANARY}

    refused = await ann.post(PATH, json=taken | {"require_approval": "always"})

    assert_problem(refused, 409, "NameTaken")
    assert service.services.secrets.find("ann", "mcp_DOCS_token") is None
    assert (await ann.get("/v1/rules")).json()["data"] == []


async def test_a_secret_of_somebodys_own_making_is_not_written_over(
    service: RunningService, ann: httpx.AsyncClient
) -> None:
    await service.services.secrets.put("ann", "mcp_docs_token", "her-own-value", ())

    refused = await ann.post(PATH, json=NOWHERE | {"auth": {"type": "bearer", "token": CANARY}})
    named = await ann.post(
        PATH, json=NOWHERE | {"auth": {"type": "bearer", "secret": "mcp_docs_token"}}, params={"wait": 0}
    )

    assert_problem(refused, 409, "SecretTaken", "send its name instead of a value")
    assert named.status_code == 201
    held = service.services.secrets.find("ann", "mcp_docs_token")
    assert held is not None
    assert held[1] == "her-own-value"


BAD_BODIES: list[tuple[Any, str]] = [
    ({}, "name: Field required"),
    ([], "body.http"),
    ({"name": "docs"}, "url: Field required"),
    ({"name": "a__b", "url": "https://a.invalid"}, "a server's name has at most 64 letters"),
    ({"name": "a" * 65, "url": "https://a.invalid"}, "a server's name has at most 64 letters"),
    (NOWHERE | {"urls": "x"}, "urls: Extra inputs are not permitted"),
    (NOWHERE | {"url": "ftp://docs.invalid"}, "A URL that starts with http:// or https:// is needed."),
    (NOWHERE | {"url": "https://ann:pass@docs.invalid"}, "A user name or password cannot stand in a URL"),
    (NOWHERE | {"url": "https://docs.invalid/?api_key=abc-123"}, "url: api_key looks like a secret"),
    (NOWHERE | {"headers": {"a b": "c"}}, "'a b' cannot be the name of a header"),
    (NOWHERE | {"headers": {"Authorization": "Bearer a"}}, "value: at least 6 characters are needed"),
    (NOWHERE | {"auth": {"type": "bearer"}}, "auth: give either the `secret`"),
    (NOWHERE | {"auth": {"type": "bearer", "token": "a"}}, "value: at least 6 characters are needed"),
    (NOWHERE | {"auth": {"type": "basic"}}, "auth"),
    (NOWHERE | {"kind": "websocket"}, "kind: Input should be 'http' or 'sse'"),
    (NOWHERE | {"replace": "yes"}, "replace: Input should be a valid boolean"),
    (NOWHERE | {"command": "x"}, "url: Extra inputs are not permitted"),
    ({"name": "a", "command": ""}, "command: String should have at least 1 character"),
    ({"name": "a", "command": "x", "args": ["--token", "abc-123"]}, "args: token looks like a secret"),
    ({"name": "a", "command": "x", "env": {"A=": "b"}}, "env: 'A=' is not a valid variable name"),
    ({"type": "mcp"}, "server_url: Field required"),
    ({"type": "web"}, "type: Input should be 'mcp'"),
    ({"type": "mcp", "server_url": "nothing"}, "A URL that starts with http:// or https:// is needed."),
    (
        {"type": "mcp", "server_url": "https://[::1]/", "server_label": "a", "authorization": CANARY},
        "or an IPv4 address",
    ),
    ({"type": "mcp", "server_url": "https://a.invalid", "server_label": "日本"}, "a name needs 1 to 64 alphanumeric"),
    ({"type": "mcp", "connector_id": "connector_gmail"}, "connectors are known to the model's provider only"),
    (
        {"type": "mcp", "server_url": "https://a.invalid", "require_approval": {"never": {"tool_names": ["a"]}}},
        "name the tools that `always` ask",
    ),
]
"""Bodies that do not fit, and what is said of them."""


async def test_a_body_that_does_not_fit_is_said_so(client: httpx.AsyncClient) -> None:
    for body, detail in BAD_BODIES:
        refused = await client.post(PATH, json=body)
        assert refused.status_code == 422, body
        assert refused.headers["content-type"] == "application/problem+json"
        assert detail in refused.json()["detail"]
        assert CANARY not in refused.text

    assert (await client.get(PATH)).json()["data"] == []
    assert (await client.get("/v1/secrets")).json()["data"] == []


async def test_a_server_with_a_connection_for_each_session_is_connected_anew_too(client: httpx.AsyncClient) -> None:
    added = await add(client, shop(per_session=True))
    again = await client.post(f"{PATH}/shop/reconnect")
    same = await client.post(PATH, json=shop(per_session=True, replace=True))

    assert (added["state"], again.json()["state"], same.json()["state"]) == ("connected", "connected", "connected")
    assert added["since"] != again.json()["since"] == same.json()["since"]


async def test_names_and_waits_that_cannot_be_are_refused(client: httpx.AsyncClient) -> None:
    for wait in ("-1", "61", "soon"):
        assert_problem(await client.post(PATH, json=NOWHERE, params={"wait": wait}), 422, "InvalidRequest", "wait")
    for name in ("a__b", "-a", "a" * 65):
        assert_problem(await client.get(f"{PATH}/{name}"), 422, "InvalidRequest", "name")


async def test_a_server_that_is_switched_off_is_there_and_not_connected_to(client: httpx.AsyncClient) -> None:
    view = await add(client, NOWHERE | {"enabled": False})

    assert (view["state"], view["enabled"]) == ("disabled", False)
    assert_problem(await client.post(f"{PATH}/docs/reconnect"), 409, "Disabled")


async def test_every_change_of_a_servers_state_is_an_event(service: RunningService, client: httpx.AsyncClient) -> None:
    async with listening(client, "/v1/events", params={"types": "mcp.status"}) as stream:
        await add(client, shop())
        states = [(await stream.must()).data for _ in range(2)]

    assert [(event["data"]["server"], event["data"]["state"]) for event in states] == [
        ("shop", "starting"),
        ("shop", "connected"),
    ]
