"""Rules written at run time: listed, kept, taken back, by those who may, for whom they may."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.principals import Bounds, Scope
from app.core.sessions import Session
from tests.api.test_api_access import assert_problem
from tests.support.ask_calls import asking, ended, key_with
from tests.support.services import RunningService

RULE = {"permission": "read", "pattern": "x/*", "action": "deny"}
NEED = {"tool": "need", "arguments": {"path": "x/a"}}


async def written(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/rules", json=RULE | more)
    assert answer.status_code == 201, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def code_of(client: httpx.AsyncClient, **more: Any) -> str | None:
    """How a call that reads `x/a` ends."""
    call = (await client.post("/v1/calls", json=NEED | more)).json()
    return call["error"]["code"] if call["error"] else None


def lay_out(home: str, *folders: str) -> None:
    """Folders, and a link to the last of them."""
    for folder in folders:
        Path(home, folder).mkdir()
    Path(home, "link").symlink_to(folders[-1])


async def add_session(service: RunningService, principal: str, id: str) -> None:
    assert await service.services.sessions.create(Session(principal, id))


async def test_a_rule_counts_at_once_survives_a_restart_and_is_gone_when_it_is_taken_back(
    service: RunningService,
) -> None:
    rule = await written(service.client)
    before = await code_of(service.client)
    await service.restart()
    after = await code_of(service.client)
    listed = (await service.client.get("/v1/rules")).json()
    gone = await service.client.delete(f"/v1/rules/{rule['id']}")
    again = await service.client.delete(f"/v1/rules/{rule['id']}")

    assert rule == {
        "id": rule["id"],
        "permission": "read",
        "pattern": "x/*",
        "action": "deny",
        "scope": "global",
        "session": None,
        "workspace": None,
        "ask": None,
        "principal": "admin",
        "created_by": rule["created_by"],
        "created_at": rule["created_at"],
    }
    assert rule["created_by"].startswith("key_")
    assert listed == {"data": [rule], "next_cursor": None}
    assert (before, after) == ("PermissionDenied", "PermissionDenied")
    assert (gone.status_code, gone.content) == (204, b"")
    assert_problem(again, 404, "NotFound")
    assert await code_of(service.client) is None
    assert (await service.client.get("/v1/rules")).json()["data"] == []


async def test_a_rule_counts_where_it_says(service: RunningService, client: httpx.AsyncClient) -> None:
    home = service.services.workspaces.home
    lay_out(home, "one", "two")
    for id in ("one", "two"):
        made = await client.post("/v1/sessions", json={"id": id, "workspace": id})
        assert made.status_code == 201, made.text

    rules = [
        await written(client, scope="session", session="one"),
        await written(client, scope="workspace", workspace=f"{home}/link/"),
    ]

    assert [await code_of(client, session=id) for id in ("one", "two", "default")] == [
        "PermissionDenied",
        "PermissionDenied",
        None,
    ]
    assert [rule["workspace"] for rule in rules] == [None, f"{home}/two"]
    assert (await client.get("/v1/rules", params={"scope": "session"})).json()["data"] == rules[:1]
    assert (await client.get("/v1/rules", params={"session": "one"})).json()["data"] == rules[:1]
    assert (await client.get("/v1/rules", params={"session": "two"})).json()["data"] == []
    assert (await written(client, scope="workspace", workspace=home))["workspace"] == "default"
    assert await code_of(client) == "PermissionDenied"


async def test_the_newest_of_those_that_match_counts(client: httpx.AsyncClient) -> None:
    await written(client, action="ask")
    await written(client, action="allow")

    assert await code_of(client, on_ask="deny") is None


async def test_what_everybody_has_is_written_by_an_admin_and_decides(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    token = await key_with(service, Scope.CALLS_RUN, Scope.CALLS_READ, Scope.RULES_WRITE)
    async with service.client_of(token) as ann:
        refused = await ann.post("/v1/rules", json=RULE | {"everybody": True})
        rule = await written(client, everybody=True)
        own = await written(ann, action="allow")
        code = await code_of(ann)
        listed = (await ann.get("/v1/rules")).json()["data"]
        not_hers = await ann.delete(f"/v1/rules/{rule['id']}")

    assert_problem(refused, 403, "Forbidden")
    assert rule["principal"] == "*"
    assert code == "PermissionDenied"
    assert listed == [own]
    assert_problem(not_hers, 404, "NotFound")
    assert (await client.get("/v1/rules")).json()["data"] == [rule, own]


async def test_rules_of_others_are_not_there_and_an_admin_may_take_any_back(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    scopes = (Scope.CALLS_RUN, Scope.CALLS_READ, Scope.RULES_WRITE)
    async with (
        service.client_of(await key_with(service, *scopes)) as ann,
        service.client_of(await key_with(service, *scopes, principal="bob")) as bob,
    ):
        rule = await written(ann)
        assert (await bob.get("/v1/rules")).json()["data"] == []
        foreign, missing = await bob.delete(f"/v1/rules/{rule['id']}"), await bob.delete("/v1/rules/rule_0")
        assert foreign.text.replace(rule["id"], "rule_0") == missing.text
        assert_problem(foreign, 404, "NotFound")
        assert await code_of(bob) is None
        assert (await client.delete(f"/v1/rules/{rule['id']}")).status_code == 204
        assert await code_of(ann) is None


async def test_rules_take_their_own_scope_to_write_and_that_or_reading_to_list(service: RunningService) -> None:
    async with (
        service.client_of(await key_with(service, Scope.RULES_WRITE)) as writer,
        service.client_of(await key_with(service, Scope.CALLS_READ)) as reader,
        service.client_of(await key_with(service, Scope.CALLS_RUN, Scope.ASKS_ANSWER)) as runner,
    ):
        rule = await written(writer)
        lists = [await one.get("/v1/rules") for one in (writer, reader)]
        refused = [
            await runner.get("/v1/rules"),
            await reader.post("/v1/rules", json=RULE),
            await runner.delete(f"/v1/rules/{rule['id']}"),
        ]

    assert [one.json()["data"] for one in lists] == [[rule], [rule]]
    for answer in refused:
        assert_problem(answer, 403, "Forbidden")


async def test_a_key_that_is_bound_to_workspaces_writes_and_sees_rules_of_those_only(service: RunningService) -> None:
    home = service.services.workspaces.home
    lay_out(home, "one", "mine")
    bounds = Bounds(workspaces=(f"{home}/mine",))
    async with (
        service.client_of(await key_with(service, Scope.RULES_WRITE)) as free,
        service.client_of(await key_with(service, Scope.RULES_WRITE, bounds=bounds)) as bound,
    ):
        everywhere = await written(free)
        at_home = await written(free, scope="workspace", workspace="default")
        mine = await written(bound, scope="workspace", workspace=f"{home}/link")
        listed = (await bound.get("/v1/rules")).json()["data"]
        hidden = await bound.delete(f"/v1/rules/{at_home['id']}")
        refused = [
            await bound.post("/v1/rules", json=RULE),
            await bound.post("/v1/rules", json=RULE | {"scope": "workspace", "workspace": "default"}),
            await bound.delete(f"/v1/rules/{everywhere['id']}"),
        ]
        dropped = await bound.delete(f"/v1/rules/{mine['id']}")

    assert listed == [everywhere, mine]
    assert dropped.status_code == 204
    assert_problem(hidden, 404, "NotFound")
    for answer in refused:
        assert_problem(answer, 403, "Forbidden")


async def test_a_key_that_is_bound_to_sessions_writes_and_sees_rules_of_those_only(service: RunningService) -> None:
    await add_session(service, "ann", "work")
    await add_session(service, "ann", "home")
    async with (
        service.client_of(await key_with(service, Scope.RULES_WRITE)) as free,
        service.client_of(await key_with(service, Scope.RULES_WRITE, bounds=Bounds(sessions=("w*",)))) as bound,
    ):
        everywhere = await written(free)
        elsewhere = await written(free, scope="session", session="home")
        mine = await written(bound, scope="session", session="work")
        listed = (await bound.get("/v1/rules")).json()["data"]
        hidden = [
            await bound.post("/v1/rules", json=RULE | {"scope": "session", "session": "home"}),
            await bound.delete(f"/v1/rules/{elsewhere['id']}"),
        ]
        refused = [await bound.post("/v1/rules", json=RULE), await bound.delete(f"/v1/rules/{everywhere['id']}")]
        dropped = await bound.delete(f"/v1/rules/{mine['id']}")

    assert listed == [everywhere, mine]
    assert dropped.status_code == 204
    for answer in hidden:
        assert_problem(answer, 404, "NotFound")
    for answer in refused:
        assert_problem(answer, 403, "Forbidden")


async def test_a_rule_that_does_not_fit_is_refused(
    service: RunningService, client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[dict[str, Any]] = [
        {"action": "maybe"},
        {"action": None},
        {"permission": ""},
        {"pattern": ""},
        {"pattern": "x" * 4097},
        {"scope": "everywhere"},
        {"scope": "session"},
        {"session": "default"},
        {"scope": "session", "session": "default", "workspace": "/srv"},
        {"scope": "session", "session": "default", "everybody": True},
        {"scope": "workspace"},
        {"scope": "workspace", "workspace": "relative/path"},
        {"scope": "workspace", "workspace": "//srv"},
        {"everybody": "yes"},
        {"ask": "ask_1"},
    ]
    for wrong in cases:
        with subtests.test(wrong=wrong):
            refused = await client.post("/v1/rules", json=RULE | wrong)

            assert_problem(refused, 422, "InvalidRequest")
            assert service.rows("SELECT * FROM rules") == []


async def test_a_rule_of_a_session_needs_the_session(client: httpx.AsyncClient) -> None:
    missing = await client.post("/v1/rules", json=RULE | {"scope": "session", "session": "nowhere"})

    assert_problem(missing, 404, "NotFound")
    assert (await written(client, scope="session", session="default"))["session"] == "default"


async def test_a_rule_of_a_workspace_is_for_one_that_a_session_may_have(client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/rules", json=RULE | {"scope": "workspace", "workspace": "/etc"})

    assert_problem(refused, 403, "Forbidden")
    assert "`workspace_roots`" in refused.json()["detail"]
    assert (await written(client, scope="workspace", workspace="/etc", everybody=True))["workspace"] == "/etc"


async def test_a_rule_holds_no_secret(service: RunningService, client: httpx.AsyncClient) -> None:
    await client.put("/v1/secrets/DOOR", json={"value": "open-sesame-42"})

    refused = await client.post("/v1/rules", json=RULE | {"pattern": "curl -u open-sesame-42 *"})

    assert_problem(refused, 422, "InvalidRequest")
    assert "sesame" not in refused.text
    assert service.rows("SELECT * FROM rules") == []


async def test_what_a_rule_had_allowed_is_asked_again_when_the_rule_is_gone(client: httpx.AsyncClient) -> None:
    rule = await written(client, pattern="*.env", action="allow")
    allowed = (await client.post("/v1/calls", json={"tool": "need", "arguments": {"path": ".env"}})).json()

    await client.delete(f"/v1/rules/{rule['id']}")
    call, ask = await asking(client)
    await client.post(f"/v1/asks/{ask['id']}/answer", json={"decision": "deny"})

    assert allowed["status"] == "completed"
    assert (await ended(client, call))["error"]["code"] == "PermissionDenied"
