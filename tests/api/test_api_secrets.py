"""Secrets over HTTP: values go in, names come out."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.errors import SealBroken, VaultLocked
from app.core.secrets import GLOBAL_PRINCIPAL, InvalidSecret
from tests.support.services import Crib, RunningService
from tests.support.toy_tools import Toys

CANARY = "canary-in-the-coal-mine"
WRITER = ["calls:read", "secrets:write"]


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def client_for(service: RunningService, principal: str, scopes: list[str]) -> httpx.AsyncClient:
    answer = await service.client.post("/v1/keys", json={"principal": principal, "scopes": scopes})
    return service.client_of(answer.json()["token"])


@pytest.fixture
async def ann(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "ann", WRITER) as client:
        yield client


@pytest.fixture
async def bob(service: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with await client_for(service, "bob", WRITER) as client:
        yield client


async def put(client: httpx.AsyncClient, name: str, value: str, **more: Any) -> httpx.Response:
    is_global = more.pop("everybody", None)
    params = {} if is_global is None else {"global": is_global}
    return await client.put(f"/v1/secrets/{name}", json={"value": value} | more, params=params)


async def names(client: httpx.AsyncClient, **params: Any) -> list[tuple[str, bool]]:
    listed = (await client.get("/v1/secrets", params=params)).json()
    assert listed["next_cursor"] is None
    return [(secret["name"], secret["global"]) for secret in listed["data"]]


async def test_a_secret_is_kept_shown_without_its_value_replaced_and_removed(ann: httpx.AsyncClient) -> None:
    new = await put(ann, "TOKEN", CANARY, domains=["API.example.com"])
    one = await ann.get("/v1/secrets/TOKEN")
    all_ = await ann.get("/v1/secrets")
    replaced = await put(ann, "TOKEN", "another value")
    removed = await ann.delete("/v1/secrets/TOKEN")
    again = await ann.delete("/v1/secrets/TOKEN")
    gone = await ann.get("/v1/secrets/TOKEN")

    view = new.json()
    assert view == {
        "name": "TOKEN",
        "global": False,
        "domains": ["api.example.com"],
        "source": "store",
        "created_at": view["created_at"],
        "updated_at": view["created_at"],
    }
    assert (new.status_code, one.json(), all_.json()) == (201, view, {"data": [view], "next_cursor": None})
    assert replaced.status_code == 200
    assert replaced.json() == view | {"domains": [], "updated_at": replaced.json()["updated_at"]}
    assert replaced.json()["updated_at"] > view["updated_at"]
    assert (removed.status_code, removed.content) == (204, b"")
    assert_problem(again, 404, "NotFound")
    assert_problem(gone, 404, "NotFound")


async def test_what_belongs_to_somebody_else_is_not_there(
    service: RunningService, ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    await put(ann, "TOKEN", CANARY)

    for other in (bob, service.client):
        for method in ("GET", "DELETE"):
            foreign = await other.request(method, "/v1/secrets/TOKEN")
            missing = await other.request(method, "/v1/secrets/NOTHING")
            assert_problem(foreign, 404, "NotFound")
            assert foreign.text.replace("TOKEN", "NOTHING") == missing.text
        assert await names(other) == []
    assert (await put(bob, "TOKEN", "bobs value")).status_code == 201
    assert service.services.secrets.find("ann", "TOKEN") != service.services.secrets.find("bob", "TOKEN")


async def test_everybodys_secret_is_seen_by_all_and_hidden_by_ones_own(
    service: RunningService, ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    made = await put(service.client, "TOKEN", "everybodys", everybody=True)
    await put(ann, "TOKEN", "anns value")
    await put(ann, "OTHER", "anns value")

    assert (made.status_code, made.json()["global"]) == (201, True)
    seen = {who: (await who.get("/v1/secrets/TOKEN")).json()["global"] for who in (ann, bob, service.client)}
    assert seen == {ann: False, bob: True, service.client: True}
    assert (await ann.get("/v1/secrets/TOKEN", params={"global": True})).json() == made.json()
    assert_problem(await ann.get("/v1/secrets/OTHER", params={"global": True}), 404, "NotFound")
    assert await names(ann) == [("OTHER", False), ("TOKEN", False), ("TOKEN", True)]
    assert await names(bob) == await names(ann, **{"global": True}) == [("TOKEN", True)]


async def test_everybodys_secret_is_changed_by_admins_who_say_so(
    service: RunningService, ann: httpx.AsyncClient
) -> None:
    await put(service.client, "TOKEN", "everybodys", everybody=True)

    assert_problem(await put(ann, "TOKEN", "anns value", everybody=True), 403, "Forbidden")
    assert_problem(await ann.delete("/v1/secrets/TOKEN", params={"global": True}), 403, "Forbidden")
    assert_problem(await ann.delete("/v1/secrets/TOKEN"), 404, "NotFound")
    assert_problem(await service.client.delete("/v1/secrets/TOKEN"), 404, "NotFound")
    held = service.services.secrets.find(GLOBAL_PRINCIPAL, "TOKEN")
    assert held is not None
    assert held[1] == "everybodys"
    assert (await service.client.delete("/v1/secrets/TOKEN", params={"global": True})).status_code == 204
    assert service.services.secrets.values() == set()


@pytest.mark.parametrize(
    ("scopes", "may_read", "may_write"),
    [
        (["calls:read"], True, False),
        (["secrets:write"], False, True),
        (["calls:run", "rules:write", "tools:write", "metrics"], False, False),
        (["admin"], True, True),
    ],
)
async def test_a_key_does_only_what_its_scopes_say(
    service: RunningService, scopes: list[str], may_read: bool, may_write: bool
) -> None:
    async with await client_for(service, "eve", scopes) as eve:
        wrote = await put(eve, "TOKEN", CANARY)
        read = [await eve.get("/v1/secrets"), await eve.get("/v1/secrets/TOKEN")]
        removed = await eve.delete("/v1/secrets/TOKEN")

    assert (wrote.status_code, removed.status_code) == ((201, 204) if may_write else (403, 403))
    assert [answer.status_code for answer in read] == ([200, 200 if may_write else 404] if may_read else [403, 403])


async def test_nobody_gets_in_without_a_key(service: RunningService) -> None:
    async with service.client_of(None) as stranger:
        for answer in [
            await put(stranger, "TOKEN", CANARY),
            await stranger.get("/v1/secrets"),
            await stranger.get("/v1/secrets/TOKEN"),
            await stranger.delete("/v1/secrets/TOKEN"),
        ]:
            assert_problem(answer, 401, "Unauthorized")
    assert service.rows("SELECT * FROM secrets") == []


async def test_a_body_that_does_not_fit_is_refused_without_being_told(
    service: RunningService, ann: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[Any, str]] = [
        ({"value": "cana\0ry-in-the-coal-mine"}, "value: text without NUL"),
        ({"value": "short"}, "value: at least 6 characters are needed; a shorter one cannot be redacted"),
        ({"value": CANARY * 65_536}, "value: at most 65,536 characters"),
        ({"value": "\n\n\n\n\n\n"}, "value: blanks alone"),
        ({"value": [CANARY]}, "body.value: Input should be a valid string"),
        ({"value": {"value": CANARY}}, "body.value: Input should be a valid string"),
        ({"value": None, "domains": [CANARY + "!"]}, "body.value: Input should be a valid string"),
        ({"vlaue": CANARY}, "only `value` and `domains` are allowed in the body"),
        ({CANARY: True, "value": CANARY}, "only `value` and `domains` are allowed in the body"),
        ({"value": CANARY, "domains": {"a": CANARY}}, "body.domains: Input should be a valid list"),
        ({"value": CANARY, "domains": [7]}, "body.domains.0: Input should be a valid string"),
        ({"value": CANARY, "domains": ["https://a.example"]}, "domains: 'https://a.example' is not a host name"),
        ({"value": CANARY, "domains": ["a.example"] * 33}, "body.domains: List should have at most 32 items"),
        (CANARY, "body: Input should be a valid dictionary"),
        ([CANARY], "body: Input should be a valid dictionary"),
        ({}, "body.value: Field required"),
    ]
    for body, detail in cases:
        with subtests.test(body=body, detail=detail):
            answer = await ann.put("/v1/secrets/TOKEN", json=body)

            assert_problem(answer, 422, "InvalidRequest")
            assert detail in answer.json()["detail"]
            assert "canary" not in answer.text.lower()
            assert service.rows("SELECT * FROM secrets") == []


async def test_a_body_that_is_no_json_is_refused_without_being_told(
    ann: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[str] = [
        CANARY,
        '"' + CANARY,
        '{"value": ' + CANARY,
        '{"value": "\\ud800' + CANARY + '"}',
        '{"value": "' + CANARY,
    ]
    for body in cases:
        with subtests.test(body=body):
            answer = await ann.put("/v1/secrets/TOKEN", content=body, headers={"Content-Type": "application/json"})

            assert_problem(answer, 400, "InvalidJson")
            assert "canary" not in answer.text


async def test_a_bad_name_is_refused(ann: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for name in ["9", "_A", "a%20b", "x" * 65, "%C3%A9", "A%0A", "*"]:
        for method in ["PUT", "GET", "DELETE"]:
            with subtests.test(name=name, method=method):
                body = {"value": CANARY} if method == "PUT" else None

                answer = await ann.request(method, f"/v1/secrets/{name}", json=body)

                assert_problem(answer, 422, "InvalidRequest")
                assert answer.json()["detail"].startswith("path.name: ")
                assert CANARY not in answer.text


async def test_secrets_survive_a_restart_and_a_crash(service: RunningService) -> None:
    await put(service.client, "TOKEN", CANARY, domains=["*.example.com"])
    await put(service.client, "TOKEN", "everybodys", everybody=True)
    before = [(await service.client.get("/v1/secrets")).json(), service.services.secrets.values()]

    await service.restart()
    after = [(await service.client.get("/v1/secrets")).json(), service.services.secrets.values()]
    await service.crash()
    await service.open()
    at_last = [(await service.client.get("/v1/secrets")).json(), service.services.secrets.values()]

    assert before == after == at_last
    assert service.services.secrets.values() == {CANARY, "everybodys"}


async def test_the_value_is_in_no_answer_no_log_and_no_file(
    service: RunningService, ann: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [
        await put(ann, "TOKEN", CANARY),
        await put(ann, "TOKEN", CANARY + CANARY),
        await put(ann, "TOKEN", CANARY, domains=["no domain"]),
        await put(service.client, "TOKEN", CANARY, everybody=True),
        await ann.get("/v1/secrets"),
        await ann.get("/v1/secrets/TOKEN"),
        await ann.get("/v1/events", headers={"Accept": "application/json"}, params={"after": 0}),
    ]
    kept = [path.read_bytes() for path in service.data_dir.rglob("*") if path.is_file()]
    await service.restart()
    kept += [path.read_bytes() for path in service.data_dir.rglob("*") if path.is_file()]

    assert [answer.status_code for answer in answers] == [201, 200, 422, 201, 200, 200, 200]
    assert not any("canary" in answer.text for answer in answers)
    assert "canary" not in caplog.text
    assert any(b"TOKEN" in data for data in kept)
    assert not any(b"canary" in data for data in kept)


async def test_when_nothing_can_be_written_nothing_is_shown_and_nothing_told(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    await service.services.writer.close()

    answer = await put(service.client, "TOKEN", CANARY)

    assert_problem(answer, 503, "StoreUnavailable")
    assert service.services.secrets.values() == set()
    assert CANARY not in answer.text + caplog.text


async def test_a_start_makes_the_key_file_for_its_owner_alone(service: RunningService) -> None:
    assert (service.data_dir / "secrets.key").stat().st_mode & 0o777 == 0o600


async def test_a_start_without_the_right_key_file_is_refused_and_works_again_with_it(crib: Crib) -> None:
    await crib.open()
    await crib.services.secrets.put("ann", "TOKEN", CANARY, [])
    await crib.close()
    path = crib.data_dir / "secrets.key"
    right = path.read_bytes()

    path.unlink()
    with pytest.raises(VaultLocked, match="is missing"):
        await crib.open()
    path.touch(mode=0o600)
    path.write_bytes(b"A" * 43 + b"=")
    with pytest.raises(SealBroken, match="The secret TOKEN of ann cannot be decrypted"):
        await crib.open()
    path.write_bytes(b"A" * 30)
    with pytest.raises(VaultLocked, match="is broken"):
        await crib.open()
    path.write_bytes(right)
    path.chmod(0o644)
    with pytest.raises(VaultLocked, match="chmod 600"):
        await crib.open()
    path.chmod(0o600)
    await crib.open()

    held = crib.services.secrets.find("ann", "TOKEN")
    assert held is not None
    assert held[1] == CANARY


@pytest.fixture
async def configured(
    data_dir: Path, tmp_path: Path, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningService]:
    """A service with a stored secret and two of the operator's, one of them of the same name."""
    monkeypatch.setenv("MAIL_VARIABLE", CANARY)
    (tmp_path / "token").write_text("from the file\n\n")
    service = RunningService(data_dir, toys)
    await service.open()
    await put(service.client, "MAIL", "the stored one", everybody=True)
    service.settings["secrets"] = {
        "MAIL": {"env": "MAIL_VARIABLE", "domains": ["Mail.example"]},
        "DISK": {"file": str(tmp_path / "token")},
    }
    await service.restart()
    yield service
    await service.close()


async def test_a_configured_secret_is_everybodys_and_never_kept(configured: RunningService) -> None:
    async with await client_for(configured, "ann", WRITER) as ann:
        one = await ann.get("/v1/secrets/MAIL")
        listed = await names(ann)

    assert one.json() == {
        "name": "MAIL",
        "global": True,
        "domains": ["mail.example"],
        "source": "config",
        "created_at": None,
        "updated_at": None,
    }
    assert listed == [("DISK", True), ("MAIL", True)]
    found = [configured.services.secrets.find("ann", name) for name in ("MAIL", "DISK")]
    assert [held[1] for held in found if held] == [CANARY, "from the file\n"]
    assert configured.services.secrets.values() == {CANARY, "from the file\n", "the stored one"}
    assert [row["name"] for row in configured.rows("SELECT * FROM secrets")] == ["MAIL"]


async def test_a_configured_secret_is_changed_only_in_the_configuration(configured: RunningService) -> None:
    changed = await put(configured.client, "MAIL", "another value", everybody=True)
    removed = await configured.client.delete("/v1/secrets/MAIL", params={"global": True})
    own = await put(configured.client, "MAIL", "another value")

    assert_problem(changed, 409, "SecretConfigured")
    assert_problem(removed, 409, "SecretConfigured")
    assert changed.json()["detail"] == "The secret MAIL comes from the configuration; change it there."
    assert own.status_code == 201


async def test_the_stored_secret_comes_back_when_the_configured_one_goes(configured: RunningService) -> None:
    configured.settings["secrets"] = {}
    await configured.restart()

    held = configured.services.secrets.find("ann", "MAIL")
    assert held is not None
    assert (held[0].source, held[1]) == ("store", "the stored one")


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("MAIL", {"env": "NOT_SET"}, "the variable NOT_SET is not set"),
        ("MAIL", {"file": "/does/not/exist"}, "the file /does/not/exist cannot be read: No such file"),
        ("MAIL", {"file": "/"}, "the file / cannot be read: Is a directory"),
        ("MAIL", {"env": "SHORT"}, "value: at least 6 characters"),
        ("MAIL", {"env": "MAIL_VARIABLE", "domains": ["http://a"]}, "'http://a' is not a host name"),
        ("9MAIL", {"env": "MAIL_VARIABLE"}, "name: it must match"),
    ],
)
async def test_a_configured_secret_that_cannot_be_used_refuses_the_start(
    crib: Crib, monkeypatch: pytest.MonkeyPatch, name: str, setting: dict[str, Any], reason: str
) -> None:
    monkeypatch.setenv("MAIL_VARIABLE", CANARY)
    monkeypatch.setenv("SHORT", "can")
    crib.settings["secrets"] = {name: setting}

    with pytest.raises(InvalidSecret, match=f"^The secret {name} of the configuration cannot be used: ") as refused:
        await crib.open()

    assert reason in str(refused.value)
    assert CANARY not in str(refused.value)
