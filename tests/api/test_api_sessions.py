"""Sessions over HTTP: made, listed, changed, used and deleted."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.sessions import Session
from tests.api.test_api_access import assert_problem, new_key
from tests.support.services import HANG, RunningService, listening, until
from tests.support.toy_tools import Toys

EVENTS = {"Accept": "application/json"}
SECRET = "correct-horse-battery"
POLICY = {
    "type": "allowlist",
    "allowed_domains": ["packages.example.org", "github.com"],
    "domain_secrets": [{"domain": "api.example.com", "name": "API_KEY", "value": "secret-token"}],
}
"""The shape as OpenAI documents it for its hosted shell, word for word."""


@pytest.fixture
async def service(data_dir: Path, toys: Toys, tmp_path: Path) -> AsyncIterator[RunningService]:
    """One whose operator allows a root beside the service's own workspace."""
    (tmp_path / "root/project").mkdir(parents=True)
    service = RunningService(data_dir, toys, workspace_roots=[tmp_path / "root"])
    await service.open()
    yield service
    await service.close()


async def make(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/v1/sessions", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def changes(service: RunningService) -> list[Any]:
    page = await service.client.get("/v1/events", params={"types": "session.changed", "after": 0}, headers=EVENTS)
    return [(event["session"], event["data"]) for event in page.json()["data"]]


async def test_a_session_is_made_read_back_and_told(service: RunningService, data_dir: Path) -> None:
    body = {
        "id": "feature-1",
        "agent": "builder",
        "model": "gpt-5.2",
        "approval": "never",
        "rules": [{"permission": "edit", "pattern": "src/*", "action": "deny"}, {"action": "ask"}],
        "network_policy": {"type": "disabled"},
        "profile": "read-only",
        "env": {"LANG": "C.UTF-8"},
        "labels": {"team": "blue"},
    }

    made = await make(service.client, **body)

    assert made == body | {
        "principal": "admin",
        "workspace": str(data_dir / "workspaces/admin/feature-1"),
        "rules": [body["rules"][0], {"permission": "*", "pattern": "*", "action": "ask"}],  # type: ignore[index]
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
    }
    assert (await service.client.get("/v1/sessions/feature-1")).json() == made
    assert await changes(service) == [("feature-1", made)]
    await service.restart()
    assert (await service.client.get("/v1/sessions/feature-1")).json() == made


async def test_a_session_without_a_name_gets_one_and_a_folder_of_its_own(service: RunningService) -> None:
    first, second = await make(service.client), await make(service.client)

    assert re.fullmatch(r"ses_[0-9a-f]{24}", first["id"])
    assert first["workspace"].endswith(f"/workspaces/admin/{first['id']}")
    assert first["workspace"] != second["workspace"]


async def test_a_call_runs_in_the_session_it_names(service: RunningService, toys: Toys) -> None:
    made = await make(service.client, id="s1", agent="builder")
    by_body = await service.client.post("/v1/calls", json={"tool": "echo", "session": "s1"})
    by_header = await service.client.post("/v1/calls", json={"tool": "echo"}, headers={"Toolcrib-Session": "s1"})
    plain = await service.client.post("/v1/calls", json={"tool": "echo"})

    assert [answer.json()["session"] for answer in (by_body, by_header, plain)] == ["s1", "s1", "default"]
    assert [ctx.agent for ctx in toys.contexts] == ["builder", "builder", None]
    assert [ctx.workspace.root for ctx in toys.contexts][:2] == [made["workspace"]] * 2
    assert toys.contexts[2].workspace.root == service.services.workspaces.home


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (".", None),
        ("{home}", None),
        ("deep", "{home}/deep"),
        ("{root}/project", "{root}/project"),
        ("{root}", "{root}"),
    ],
)
async def test_an_existing_folder_can_be_a_workspace(
    service: RunningService, tmp_path: Path, asked: str, found: str | None
) -> None:
    where = {"home": service.services.workspaces.home, "root": str(tmp_path / "root")}
    (tmp_path / "data/workspace/deep").mkdir()

    made = await make(service.client, workspace=asked.format(**where))

    assert made["workspace"] == (found and found.format(**where))


async def test_a_folder_that_is_not_allowed_or_not_there_is_refused(service: RunningService, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/out").symlink_to(tmp_path / "outside")
    (tmp_path / "root/file").write_text("")
    refused = [
        str(tmp_path / name) for name in ("outside", "root/out", "root/file", "root/nothing", "data", "root/../..")
    ]

    for workspace in (*refused, "..", "/", "nothing", "a\0b", ""):
        answer = await service.client.post("/v1/sessions", json={"id": "s", "workspace": workspace})
        assert_problem(answer, 422, "InvalidRequest")
        assert "workspace" in answer.json()["detail"]
    assert await changes(service) == []


async def test_a_folder_that_vanished_is_a_sentence_for_the_model(service: RunningService, tmp_path: Path) -> None:
    await make(service.client, id="s1", workspace=str(tmp_path / "root/project"))
    (tmp_path / "root/project").rmdir()

    answer = await service.client.post("/v1/calls", json={"tool": "echo", "session": "s1"})

    assert answer.status_code == 200
    error = answer.json()["error"]
    assert (error["code"], error["retryable"]) == ("ToolUnavailable", True)
    assert error["message"].startswith("The workspace of this session cannot be used: ")


async def test_sessions_of_one_folder_take_turns_and_others_do_not(service: RunningService, toys: Toys) -> None:
    await make(service.client, id="outer", workspace=".")
    await make(service.client, id="apart")
    write = {"tool": "wait", "arguments": {"name": "first", "effect": "write"}, "session": "default"}
    await service.client.post("/v1/calls", params={"wait": 0}, json=write)
    await service.started("first")

    nested = await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "note", "session": "outer"})
    apart = await service.client.post("/v1/calls", json={"tool": "note", "session": "apart"})

    assert apart.json()["status"] == "completed"
    await until(lambda: service.row(nested.json()["id"])["waiting"] == "gate")
    toys.go["first"].set()
    ended = await service.client.get(f"/v1/calls/{nested.json()['id']}", params={"wait": 5})
    assert ended.json()["status"] == "completed"


async def test_a_session_asked_for_badly_is_refused_and_nothing_is_made(
    service: RunningService, data_dir: Path, subtests: pytest.Subtests
) -> None:
    cases: list[dict[str, Any]] = [
        {"id": ""},
        {"id": "-x"},
        {"id": "a/b"},
        {"id": "a b"},
        {"id": "x" * 129},
        {"id": "a\n"},
        {"agent": ""},
        {"approval": "always"},
        {"rules": [{"permission": "edit"}]},
        {"rules": [{"action": "allow", "layer": "operator"}]},
        {"rules": [{"action": "allow"}] * 257},
        {"network_policy": {"type": "open"}},
        {"network_policy": {"type": "disabled", "allowed_domains": []}},
        {"network_policy": {"type": "allowlist", "allowed_domains": ["https://a.example"]}},
        {"network_policy": {"type": "allowlist", "allowed_domains": ["a.example:443"]}},
        {"network_policy": {"type": "allowlist", "domain_secrets": [{"domain": "a.example"}]}},
        {"env": {"1A": "x"}},
        {"env": {"A-B": "x"}},
        {"env": {"A": 1}},
        {"env": {"A": "a\0b"}},
        {"env": {"A": {"secret": "x", "value": "y"}}},
        {"env": {"A": {"secret": "NOBODY_HAS_THIS"}}},
        {"env": {"A": "x" * 32_000, "B": "x" * 32_000, "C": "x" * 32_000}},
        {"labels": {f"l{n}": "" for n in range(33)}},
        {"labels": {"a": 1}},
        {"is_trusted": True},
        {"principal": "bob"},
    ]
    for body in cases:
        with subtests.test(body=body):
            assert_problem(await service.client.post("/v1/sessions", json=body), 422, "InvalidRequest")
            assert await changes(service) == []
            assert not (data_dir / "workspaces").exists()


async def test_an_id_is_taken_until_its_session_is_deleted(service: RunningService, data_dir: Path) -> None:
    first = await make(service.client, id="s1")
    (Path(first["workspace"]) / "kept").write_text("still here")

    assert_problem(await service.client.post("/v1/sessions", json={"id": "s1"}), 409, "SessionTaken")
    assert_problem(await service.client.post("/v1/sessions", json={"id": "default"}), 409, "SessionTaken")
    assert (await service.client.delete("/v1/sessions/s1")).status_code == 204
    again = await make(service.client, id="s1")

    assert again["workspace"] != first["workspace"]
    assert (Path(first["workspace"]) / "kept").read_text() == "still here"
    assert len(list((data_dir / "workspaces/admin").iterdir())) == 2


async def test_what_is_changed_counts_from_the_next_call_on_and_the_rest_stays(
    service: RunningService, toys: Toys
) -> None:
    made = await make(service.client, id="s1", agent="first", labels={"a": "1"}, env={"A": "1"})

    changed = (await service.client.patch("/v1/sessions/s1", json={"agent": "second", "labels": None})).json()
    await service.client.post("/v1/calls", json={"tool": "echo", "session": "s1"})

    assert changed == made | {"agent": "second", "labels": {}, "updated_at": changed["updated_at"]}
    assert changed["updated_at"] > made["updated_at"]
    assert toys.contexts[-1].agent == "second"
    assert [data["agent"] for _, data in await changes(service)] == ["first", "second"]
    for body in ({"workspace": "."}, {"id": "s2"}, {"agent": 1}):
        assert_problem(await service.client.patch("/v1/sessions/s1", json=body), 422, "InvalidRequest")


async def test_the_default_session_can_be_changed_but_not_deleted(service: RunningService, toys: Toys) -> None:
    changed = await service.client.patch("/v1/sessions/default", json={"agent": "builder"})
    await service.client.post("/v1/calls", json={"tool": "echo"})

    assert (changed.status_code, changed.json()["workspace"]) == (200, None)
    assert toys.contexts[-1].agent == "builder"
    assert_problem(await service.client.delete("/v1/sessions/default"), 409, "SessionNeeded")


async def test_deleting_cancels_its_calls_and_leaves_their_records(service: RunningService) -> None:
    await make(service.client, id="s1")
    body = {"tool": "wait_free", "arguments": {"say": "so far"}, "session": "s1"}
    call = (await service.client.post("/v1/calls", params={"wait": 0}, json=body)).json()
    await service.started("wait")

    assert (await service.client.delete("/v1/sessions/s1")).status_code == 204

    ended = (await service.client.get(f"/v1/calls/{call['id']}")).json()
    assert ended["error"] == {"code": "Canceled", "message": "The session was deleted.", "retryable": False}
    assert ended["result"]["output"] == "so far"
    assert [one["id"] for one in (await service.client.get("/v1/calls?session=s1")).json()["data"]] == [call["id"]]
    assert (await changes(service))[-1] == ("s1", {"deleted": True})
    for method, path in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/plan")]:
        answer = await service.client.request(method, f"/v1/sessions/s1{path}", json={} if method == "PATCH" else None)
        assert_problem(answer, 404, "NotFound")
    assert_problem(await service.client.post("/v1/calls", json=body), 404, "NotFound")


async def test_no_call_slips_into_a_session_that_is_being_deleted(service: RunningService, toys: Toys) -> None:
    await make(service.client, id="s1")
    await make(service.client, id="s2")
    await service.client.post("/v1/calls", params={"wait": 0}, json={"tool": "stubborn", "session": "s1"})
    await service.started("stubborn")
    deleting = asyncio.create_task(service.client.delete("/v1/sessions/s1"))
    await service.started("canceled")

    alone = await service.client.post("/v1/calls", json={"tool": "note", "session": "s1"})
    batch = {"calls": [{"tool": "note", "session": "s2"}, {"tool": "note", "session": "s1"}]}
    together = await service.client.post("/v1/calls/batch", json=batch)

    toys.go["stubborn"].set()
    async with asyncio.timeout(HANG):
        assert (await deleting).status_code == 204
    for answer in (alone, together):
        assert_problem(answer, 404, "NotFound")
    assert toys.notes == []


async def test_sessions_are_listed_page_by_page_and_an_admin_sees_everybodys(service: RunningService) -> None:
    ann = await new_key(service, "ann")
    async with service.client_of(ann["token"]) as client:
        for id in ("b", "a", "c"):
            await make(client, id=id)
        pages, cursor = [], None
        while True:
            params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/sessions", params=params)).json()
            pages.append([one["id"] for one in page["data"]])
            if (cursor := page["next_cursor"]) is None:
                break
        foreign = (await client.get("/v1/sessions?principal=admin")).json()
        own = (await client.get("/v1/sessions?principal=ann")).json()
        missing = await client.get("/v1/sessions/default?principal=admin")

    everybodys = (await service.client.get("/v1/sessions")).json()["data"]
    anns = (await service.client.get("/v1/sessions?principal=ann")).json()["data"]
    assert pages == [["a", "b", "c"], ["default"]]
    assert foreign == {"data": [], "next_cursor": None}
    assert [one["id"] for one in own["data"]] == ["a", "b", "c", "default"]
    assert [(one["principal"], one["id"]) for one in everybodys] == [
        ("admin", "default"),
        *(("ann", id) for id in ("a", "b", "c", "default")),
    ]
    assert anns == everybodys[1:]
    assert (await service.client.get("/v1/sessions/a?principal=ann")).json() == anns[0]
    assert_problem(await service.client.get("/v1/sessions/a"), 404, "NotFound")
    assert_problem(await service.client.get("/v1/sessions/default?principal=nobody"), 404, "NotFound")
    assert_problem(missing, 404, "NotFound")


async def test_an_admin_looks_after_the_sessions_of_others(service: RunningService) -> None:
    ann = await new_key(service, "ann")
    async with service.client_of(ann["token"]) as client:
        await make(client, id="a")

    changed = await service.client.patch("/v1/sessions/a?principal=ann", json={"agent": "x"})
    gone = await service.client.delete("/v1/sessions/a?principal=ann")

    assert (changed.json()["principal"], changed.json()["agent"], gone.status_code) == ("ann", "x", 204)


async def test_reading_needs_one_scope_and_writing_another(service: RunningService) -> None:
    await make(service.client, id="s1")
    reader = await new_key(service, "admin", ["calls:read"])
    runner = await new_key(service, "admin", ["calls:run"])
    async with service.client_of(reader["token"]) as reads, service.client_of(runner["token"]) as runs:
        for client, allowed in ((reads, {"GET"}), (runs, {"POST", "PATCH", "DELETE"})):
            for method, path in [
                ("GET", "/v1/sessions"),
                ("GET", "/v1/sessions/s1"),
                ("GET", "/v1/sessions/s1/plan"),
                ("POST", "/v1/sessions"),
                ("PATCH", "/v1/sessions/s1"),
                ("DELETE", "/v1/sessions/s1"),
            ]:
                answer = await client.request(method, path, json={} if method in ("POST", "PATCH") else None)
                if method in allowed:
                    assert answer.is_success or method == "DELETE", answer.text
                else:
                    assert_problem(answer, 403, "Forbidden")


async def test_the_plan_is_the_sessions_own(service: RunningService) -> None:
    await make(service.client, id="s1")
    empty = (await service.client.get("/v1/sessions/s1/plan")).json()
    plan = {"explanation": "why", "plan": [{"step": "look", "status": "in_progress"}]}
    service.change("UPDATE sessions SET plan = ? WHERE id = 's1'", json.dumps(plan))

    assert empty == {"explanation": None, "plan": []}
    assert (await service.client.get("/v1/sessions/s1/plan")).json() == plan
    assert (await service.client.get("/v1/sessions/default/plan")).json() == empty


class TestTrust:
    """Rules count for as much as their writer may."""

    def trust(self, service: RunningService, id: str) -> bool:
        [row] = service.rows("SELECT is_trusted FROM sessions WHERE id = ?", id)
        return bool(row["is_trusted"])

    @pytest.mark.parametrize(("scopes", "is_trusted"), [(["calls:run"], False), (["calls:run", "rules:write"], True)])
    async def test_rules_are_trusted_as_their_writer_is(
        self, service: RunningService, scopes: list[str], is_trusted: bool
    ) -> None:
        key = await new_key(service, "ann", scopes)
        async with service.client_of(key["token"]) as client:
            await make(client, id="s1", rules=[{"action": "allow"}])
            await make(client, id="s2")
            await client.patch("/v1/sessions/s2", json={"rules": [{"action": "allow"}]})

        assert (self.trust(service, "s1"), self.trust(service, "s2")) == (is_trusted, is_trusted)

    async def test_a_change_of_something_else_leaves_the_trust_as_it_is(self, service: RunningService) -> None:
        lesser = await new_key(service, "admin", ["calls:run"])
        async with service.client_of(lesser["token"]) as client:
            await make(client, id="untrusted", rules=[{"action": "allow"}])
            await make(service.client, id="trusted", rules=[{"action": "allow"}])
            for id in ("untrusted", "trusted"):
                assert (await service.client.patch(f"/v1/sessions/{id}", json={"agent": "x"})).is_success
                assert (await client.patch(f"/v1/sessions/{id}", json={"labels": {"a": "b"}})).is_success

        assert (self.trust(service, "untrusted"), self.trust(service, "trusted")) == (False, True)

    async def test_who_may_loosen_does_not_lift_the_rules_of_others_by_touching_the_approval(
        self, service: RunningService
    ) -> None:
        lesser = await new_key(service, "admin", ["calls:run"])
        async with service.client_of(lesser["token"]) as client:
            await make(client, id="s1", rules=[{"action": "allow"}])
        await service.client.patch("/v1/sessions/s1", json={"approval": "on-request"})
        assert not self.trust(service, "s1")

        await service.client.patch("/v1/sessions/s1", json={"rules": [{"action": "allow"}]})

        assert self.trust(service, "s1")

    async def test_what_a_trusted_writer_set_is_not_taken_away_by_a_lesser_key(self, service: RunningService) -> None:
        lesser = await new_key(service, "admin", ["calls:run", "calls:read"])
        held: list[dict[str, Any]] = [
            {"rules": [{"action": "deny"}]},
            {"approval": "never"},
            {"network_policy": {"type": "disabled"}},
        ]
        async with service.client_of(lesser["token"]) as client:
            for body in held:
                [field] = body
                made = await make(service.client, id=field, **body)
                for change in ({field: None}, {field: body[field]}, *({other: None} for other in body | held[0])):
                    answer = await client.patch(f"/v1/sessions/{field}", json=change)
                    assert_problem(answer, 403, "Forbidden")
                    assert answer.json()["detail"].startswith(f"The {field} of this session was set by a key with")
                assert_problem(await client.delete(f"/v1/sessions/{field}"), 403, "Forbidden")
                assert (await client.get(f"/v1/sessions/{field}")).json() == made
                assert (await client.patch(f"/v1/sessions/{field}", json={"labels": {}})).is_success
            await make(client, id="own", rules=[{"action": "deny"}])
            assert (await client.patch("/v1/sessions/own", json={"rules": None})).is_success
            assert (await client.delete("/v1/sessions/own")).status_code == 204


class TestNetworkPolicies:
    """A session reaches what the operator allows, or less."""

    @pytest.fixture
    async def strict(self, service: RunningService) -> RunningService:
        service.settings["network_policy"] = {"allowed_domains": ["github.com", "*.example.org", "*.a.example"]}
        await service.restart()
        return service

    async def test_the_documented_shape_is_taken_and_its_value_kept_as_a_secret(self, service: RunningService) -> None:
        made = await make(service.client, id="s1", network_policy=POLICY)

        assert made["network_policy"] == POLICY | {"domain_secrets": [{"domain": "api.example.com", "name": "API_KEY"}]}
        held = service.services.secrets.find("admin", "API_KEY")
        assert held is not None
        assert (held[0].domains, held[1]) == (("api.example.com",), "secret-token")
        assert "secret-token" not in json.dumps(await changes(service))
        for table in ("sessions", "events", "secrets"):
            assert "secret-token" not in repr(service.rows(f"SELECT * FROM {table}"))

    async def test_a_value_needs_a_key_that_may_write_secrets(self, service: RunningService) -> None:
        key = await new_key(service, "ann")
        async with service.client_of(key["token"]) as client:
            for answer in (
                await client.post("/v1/sessions", json={"network_policy": POLICY}),
                await client.patch("/v1/sessions/default", json={"network_policy": POLICY}),
            ):
                assert_problem(answer, 403, "Forbidden")
                assert "secrets:write" in answer.json()["detail"]
        assert service.services.secrets.find("ann", "API_KEY") is None

    async def test_a_secret_without_a_value_must_be_there_and_may_go_there(self, service: RunningService) -> None:
        await service.services.secrets.put("admin", "WIDE", SECRET, [])
        await service.services.secrets.put("admin", "NARROW", SECRET, ["*.example.com"])
        await service.services.secrets.put("bob", "BOBS", SECRET, [])

        async def ask(name: str, domain: str) -> httpx.Response:
            policy = {"type": "allowlist", "domain_secrets": [{"domain": domain, "name": name}]}
            return await service.client.post("/v1/sessions", json={"network_policy": policy})

        assert (await ask("WIDE", "any.example")).status_code == 201
        assert (await ask("NARROW", "api.example.com")).status_code == 201
        for name, domain in [("NARROW", "other.example"), ("NARROW", "example.com"), ("BOBS", "a.b"), ("NONE", "a.b")]:
            assert_problem(await ask(name, domain), 422, "InvalidRequest")

    async def test_one_secret_has_one_value_for_all_its_domains(self, service: RunningService) -> None:
        def policy(*values: str) -> dict[str, Any]:
            secrets = [{"domain": f"{n}.example", "name": "K", "value": value} for n, value in enumerate(values)]
            return {"type": "allowlist", "domain_secrets": secrets}

        two = await service.client.post("/v1/sessions", json={"network_policy": policy("value-one", "value-two")})
        await make(service.client, network_policy=policy("value-one", "value-one"))
        short = await service.client.post("/v1/sessions", json={"network_policy": policy("x")})

        held = service.services.secrets.find("admin", "K")
        assert held is not None
        assert held[0].domains == ("0.example", "1.example")
        assert_problem(two, 422, "InvalidRequest")
        assert_problem(short, 422, "InvalidRequest")

    @pytest.mark.parametrize(
        "domains",
        [
            [],
            ["github.com", "GitHub.com"],
            ["x.example.org", "*.example.org", "*.deep.example.org"],
            ["b.a.example", "*.b.a.example"],
        ],
    )
    async def test_what_the_operator_allows_can_be_narrowed(self, strict: RunningService, domains: list[str]) -> None:
        await make(strict.client, network_policy={"type": "allowlist", "allowed_domains": domains})
        await make(strict.client, network_policy={"type": "disabled"})

    @pytest.mark.parametrize(
        "domain", ["evil.example", "*.github.com", "api.github.com", "example.org", "*.org", "a.example", "*.example"]
    )
    async def test_what_the_operator_does_not_allow_is_refused(self, strict: RunningService, domain: str) -> None:
        body = {"network_policy": {"type": "allowlist", "allowed_domains": ["github.com", domain]}}

        for answer in (
            await strict.client.post("/v1/sessions", json=body),
            await strict.client.patch("/v1/sessions/default", json=body),
        ):
            assert_problem(answer, 422, "InvalidRequest")
            assert f"{domain} is not allowed by the operator's network policy" in answer.json()["detail"]

    async def test_where_the_network_is_off_nothing_can_be_allowed(self, service: RunningService) -> None:
        service.settings["network_policy"] = {"type": "disabled"}
        await service.restart()
        body = {"network_policy": {"type": "allowlist", "allowed_domains": ["github.com"]}}

        assert_problem(await service.client.post("/v1/sessions", json=body), 422, "InvalidRequest")
        await make(service.client, network_policy={"type": "disabled"})


class TestSecretsInClear:
    @pytest.mark.parametrize(
        "body",
        [
            {"env": {"TOKEN": f"Bearer {SECRET}"}},
            {"labels": {"note": SECRET}},
            {"agent": SECRET},
            {"rules": [{"pattern": f"*{SECRET}*", "action": "deny"}]},
            {"env": {"TOKEN": "ghp_" + "a1" * 18}},
        ],
    )
    async def test_a_session_with_a_secret_in_clear_is_refused(
        self, service: RunningService, body: dict[str, Any]
    ) -> None:
        await service.services.secrets.put("bob", "PASSWORD", SECRET, [])

        for answer in (
            await service.client.post("/v1/sessions", json=body),
            await service.client.patch("/v1/sessions/default", json=body),
        ):
            assert_problem(answer, 422, "InvalidRequest")
            assert '`{"secret": name}`' in answer.json()["detail"]
            assert SECRET not in answer.text
        assert SECRET not in repr(service.rows("SELECT * FROM sessions"))

    async def test_a_secret_by_its_name_is_shown_by_its_name(self, service: RunningService) -> None:
        await service.services.secrets.put("admin", "PASSWORD", SECRET, [])

        made = await make(service.client, env={"PASSWORD": {"secret": "PASSWORD"}, "LANG": "C"})

        assert made["env"] == {"PASSWORD": {"secret": "PASSWORD"}, "LANG": "C"}


async def test_a_stream_of_one_session_tells_its_changes(service: RunningService) -> None:
    async with listening(service.client, "/v1/events?session=s1") as stream:
        made = await make(service.client, id="s1")
        await make(service.client, id="s2")
        await service.client.delete("/v1/sessions/s1")

        told = [await stream.must() for _ in range(2)]

    assert [frame.data["data"] for frame in told] == [made, {"deleted": True}]


async def test_a_session_made_twice_at_once_is_made_once(service: RunningService, data_dir: Path) -> None:
    answers = await asyncio.gather(*(service.client.post("/v1/sessions", json={"id": "s1"}) for _ in range(6)))

    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 5]
    assert len(list((data_dir / "workspaces/admin").iterdir())) == 1


async def test_sessions_that_are_remembered_cost_no_reading(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(service.client, id="s1")
    await service.client.post("/v1/calls", json={"tool": "echo"})

    async def unexpected(*args: Any) -> Session | None:
        raise AssertionError("it is in memory")

    monkeypatch.setattr("app.store.sessions.get", unexpected)

    for id in ("s1", "default"):
        answer = await service.client.post("/v1/calls", json={"tool": "echo", "session": id})
        assert answer.json()["status"] == "completed"
