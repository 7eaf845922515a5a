"""What waits for a person is listed, read and answered over HTTP, once, by those who may."""

from typing import Any

import httpx
import pytest

from app.config import RuleSetting
from app.core.principals import Bounds, Scope
from app.core.rules import Action
from app.core.sessions import Session
from tests.api.test_api_access import assert_problem
from tests.support.ask_calls import (
    QUESTIONS,
    AskingToys,
    answer,
    asked_by,
    asking,
    ended,
    key_with,
    open_ask,
    over,
    questioning,
)
from tests.support.services import RunningService, kinds, listening, until
from tests.support.toy_tools import Toys

CONTENT = {"colour": "Blue", "why": ["it is calm", "it is blue"]}


@pytest.fixture
def toys() -> Toys:
    return AskingToys()


async def test_an_ask_shows_what_is_wanted_by_whom_and_until_when(client: httpx.AsyncClient) -> None:
    call, ask = await asking(client, ask_timeout=60)

    read = await client.get(f"/v1/asks/{ask['id']}")
    waiting = (await client.get(f"/v1/calls/{call}")).json()

    assert read.json() == ask
    assert ask == {
        "id": ask["id"],
        "kind": "permission",
        "status": "open",
        "call": call,
        "tool": "need",
        "session": "default",
        "principal": "admin",
        "needs": [{"permission": "read", "pattern": ".env"}],
        "always": [{"permission": "read", "pattern": ".env", "action": "allow"}],
        "questions": [],
        "metadata": {},
        "answer": None,
        "reason": None,
        "created_at": ask["created_at"],
        "expires_at": ask["expires_at"],
        "ended_at": None,
    }
    assert ask["expires_at"] > ask["created_at"]
    assert (waiting["status"], waiting["waiting"], waiting["started_at"]) == ("pending", "permission", None)


@pytest.mark.parametrize("said", ["allow", "allow_once"])
async def test_an_allowed_call_runs_and_the_next_one_asks_again(
    service: RunningService, client: httpx.AsyncClient, said: str
) -> None:
    call, ask = await asking(client)

    answered = await answer(client, ask, decision=said)

    assert answered.status_code == 200
    view = answered.json()
    assert view["answer"] == {
        "decision": "allow_once",
        "message": None,
        "rules": [],
        "scope": None,
        "content": None,
        "action": None,
        "principal": "admin",
        "key": view["answer"]["key"],
    }
    assert view["answer"]["key"] in {key["id"] for key in (await client.get("/v1/keys")).json()["data"]}
    assert (view["status"], view["ended_at"] is not None) == ("answered", True)
    assert (await client.get(f"/v1/asks/{ask['id']}")).json() == view
    assert (await ended(client, call))["result"]["output"] == "had .env"
    assert service.story(call) == [
        *("call.pending", "call.waiting", "ask.opened", "ask.answered", "call.running", "call.completed"),
    ]
    _, another = await asking(client)
    assert another["id"] != ask["id"]


async def test_a_no_ends_the_call_with_what_the_person_said(client: httpx.AsyncClient) -> None:
    call, ask = await asking(client)

    await answer(client, ask, decision="deny", message="use .env.example")

    assert (await ended(client, call))["error"] == {
        "code": "PermissionDenied",
        "message": "The person did not allow read .env: use .env.example",
        "retryable": False,
        "details": {"blocked": True, "ask": ask["id"], "permission": "read", "pattern": ".env"},
    }


async def test_a_second_answer_hears_who_was_first(service: RunningService, client: httpx.AsyncClient) -> None:
    call, ask = await asking(client)
    async with service.client_of(await key_with(service, Scope.ASKS_ANSWER, principal="admin")) as other:
        await answer(other, ask, decision="deny")
        late = await answer(client, ask, decision="allow")

    assert_problem(late, 409, "AskEnded")
    assert late.json()["detail"] == f"The ask {ask['id']} was answered already: deny by admin."
    assert (await ended(client, call))["error"]["code"] == "PermissionDenied"


async def test_an_always_is_a_rule_that_is_listed_counts_and_can_be_taken_back(client: httpx.AsyncClient) -> None:
    call, ask = await asking(client)

    view = (await answer(client, ask, decision="allow_always")).json()
    [rule] = (await client.get("/v1/rules")).json()["data"]

    assert view["answer"]["rules"] == ask["always"]
    assert view["answer"]["scope"] == "session"
    assert rule == {
        "id": rule["id"],
        "permission": "read",
        "pattern": ".env",
        "action": "allow",
        "scope": "session",
        "session": "default",
        "workspace": None,
        "ask": ask["id"],
        "principal": "admin",
        "created_by": view["answer"]["key"],
        "created_at": rule["created_at"],
    }
    assert (await ended(client, call))["status"] == "completed"
    again = await client.post("/v1/calls", json={"tool": "need", "arguments": {"path": ".env"}})
    assert again.json()["status"] == "completed"
    assert (await client.delete(f"/v1/rules/{rule['id']}")).status_code == 204
    await asking(client)


@pytest.mark.parametrize(
    ("scope", "where"),
    [
        ("session", {"session": "default", "workspace": None}),
        ("workspace", {"session": None, "workspace": "default"}),
        ("global", {"session": None, "workspace": None}),
    ],
)
async def test_an_edited_always_counts_as_far_as_was_said_and_settles_what_it_covers(
    service: RunningService, client: httpx.AsyncClient, scope: str, where: dict[str, Any]
) -> None:
    call, ask = await asking(client, "deploy/.env")
    covered, covered_ask = await asking(client, "deploy/eu/.env")
    _, open_still = await asking(client, "secret/.env")

    answered = await answer(client, ask, decision="allow_always", rule={"pattern": "deploy/*"}, scope=scope)

    [rule] = (await client.get("/v1/rules")).json()["data"]
    assert answered.json()["answer"]["rules"] == [{"permission": "read", "pattern": "deploy/*", "action": "allow"}]
    assert {name: rule[name] for name in ("scope", "session", "workspace")} == where | {"scope": scope}
    assert [(await ended(client, one))["status"] for one in (call, covered)] == ["completed"] * 2
    settled = await over(service, covered_ask)
    assert (settled["answer"]["decision"], settled["answer"]["principal"]) == ("allow_always", None)
    assert settled["answer"]["message"] == "Rules now allow it."
    assert (await client.get(f"/v1/asks/{open_still['id']}")).json() == open_still


async def test_several_rules_can_be_made_at_once(client: httpx.AsyncClient) -> None:
    _, ask = await asking(client)

    edits = [{"pattern": "*.env"}, {"permission": "edit", "pattern": "*.env"}]
    answered = await answer(client, ask, decision="allow_always", rule=edits, scope="global")

    assert [rule["permission"] for rule in answered.json()["answer"]["rules"]] == ["read", "edit"]
    assert len((await client.get("/v1/rules")).json()["data"]) == 2


async def test_an_ask_nobody_answers_is_over_at_its_deadline(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    body = {"tool": "need", "arguments": {"path": ".env"}, "ask_timeout": 0.05}

    call = (await client.post("/v1/calls", json=body)).json()
    [ask] = (await client.get("/v1/asks", params={"call": call["id"], "status": "expired"})).json()["data"]
    late = await answer(client, ask, decision="allow")

    assert call["error"] == {
        "code": "AskExpired",
        "message": "No person answered whether this is allowed within 0.05 s; continue without it, or try again later.",
        "retryable": False,
        "details": {"ask": ask["id"]},
    }
    assert (ask["reason"], ask["answer"]) == ("No person answered in time.", None)
    assert service.story(call["id"])[-2:] == ["ask.expired", "call.error"]
    assert_problem(late, 409, "AskEnded")
    assert late.json()["detail"] == f"The ask {ask['id']} has ended: No person answered in time."


async def test_the_ask_of_a_canceled_call_is_over(service: RunningService, client: httpx.AsyncClient) -> None:
    call, ask = await asking(client)

    await client.post(f"/v1/calls/{call}/cancel")

    assert (await over(service, ask))["reason"] == "The call has ended."
    assert_problem(await answer(client, ask, decision="allow"), 409, "AskEnded")
    assert (await ended(client, call))["error"]["code"] == "Canceled"


async def test_a_call_that_does_not_wait_for_people_ends_at_once(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    need = {"tool": "need", "arguments": {"path": ".env"}, "on_ask": "deny"}
    question = {"tool": "request_user_input", "arguments": {"questions": QUESTIONS}, "on_ask": "deny"}

    calls = [(await client.post("/v1/calls", json=body)).json() for body in (need, question)]

    assert [call["error"]["code"] for call in calls] == ["PermissionDenied", "Declined"]
    assert service.rows("SELECT * FROM asks") == []


async def test_what_a_call_says_about_asks_counts_for_what_its_tool_calls(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    child = {"tool": "relay", "arguments": {"tool": "need", "arguments": {"path": ".env"}}}

    at_once = (await client.post("/v1/calls", json=child | {"on_ask": "deny"})).json()
    soon = (await client.post("/v1/calls", json=child | {"ask_timeout": 0.05})).json()

    assert (at_once["error"]["code"], soon["error"]["code"]) == ("PermissionDenied", "AskExpired")
    assert len(service.rows("SELECT * FROM asks")) == 1


async def test_the_deadline_of_the_service_counts_unless_a_call_says_otherwise(service: RunningService) -> None:
    await service.close()
    service.settings["ask_timeout"] = 0.05
    await service.open()

    call = await service.client.post("/v1/calls", json={"tool": "need", "arguments": {"path": ".env"}})

    assert call.json()["error"]["code"] == "AskExpired"


async def test_what_belongs_to_somebody_else_is_not_there(service: RunningService, client: httpx.AsyncClient) -> None:
    call, ask = await asking(client)
    scopes = [scope for scope in Scope if scope is not Scope.ADMIN]
    async with service.client_of(await key_with(service, *scopes)) as ann:
        requests: list[tuple[str, str, Any]] = [
            ("GET", f"/v1/asks/{ask['id']}", None),
            ("POST", f"/v1/asks/{ask['id']}/answer", {"decision": "allow"}),
            ("POST", f"/v1/asks/{ask['id']}/answer", {"content": {}}),
        ]
        for method, path, body in requests:
            foreign = await ann.request(method, path, json=body)
            missing = await ann.request(method, path.replace(ask["id"], "ask_0"), json=body)
            assert_problem(foreign, 404, "NotFound")
            assert foreign.text.replace(ask["id"], "ask_0") == missing.text
        for wanted in ("", f"?call={call}", "?session=default", "?status=open"):
            assert (await ann.get(f"/v1/asks{wanted}")).json() == {"data": [], "next_cursor": None}

    assert (await client.get(f"/v1/asks/{ask['id']}")).json() == ask


async def test_who_may_only_answer_can_list_read_and_answer_but_not_for_ever(service: RunningService) -> None:
    runner = await key_with(service, Scope.CALLS_RUN, Scope.CALLS_READ)
    reviewer = await key_with(service, Scope.ASKS_ANSWER)
    async with service.client_of(runner) as ann, service.client_of(reviewer) as eve:
        call, ask = await asking(ann)
        listed = (await eve.get("/v1/asks", params={"status": "open"})).json()["data"]
        for_ever = await answer(eve, ask, decision="allow_always")
        once = await answer(eve, ask, decision="allow_once")
        refused = [
            await ann.post(f"/v1/asks/{ask['id']}/answer", json={"decision": "allow"}),
            await eve.get("/v1/calls"),
            await eve.get(f"/v1/calls/{call}/events"),
            await eve.post("/v1/calls", json={"tool": "echo"}),
        ]
        done = await ended(ann, call)

    assert listed == [ask]
    assert_problem(for_ever, 403, "Forbidden")
    assert for_ever.json()["detail"].endswith("needs a key with rules:write.")
    assert (once.json()["answer"]["principal"], done["status"]) == ("ann", "completed")
    for answered in refused:
        assert_problem(answered, 403, "Forbidden")


@pytest.mark.parametrize("scope", [None, "session", "workspace", "global"])
async def test_no_answer_of_a_key_without_rules_write_makes_a_rule(service: RunningService, scope: str | None) -> None:
    token = await key_with(service, Scope.CALLS_RUN, Scope.ASKS_ANSWER)
    async with service.client_of(token) as ann:
        _, ask = await asking(ann)
        said = {"decision": "allow_always", "rule": {"pattern": "*"}} | ({"scope": scope} if scope else {})
        refused = await answer(ann, ask, **said)
        still = (await ann.get(f"/v1/asks/{ask['id']}")).json()

    assert_problem(refused, 403, "Forbidden")
    assert still == ask
    assert service.rows("SELECT * FROM rules") == []


async def test_an_admin_answers_for_others_and_the_rule_is_theirs(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    async with service.client_of(await key_with(service, Scope.CALLS_RUN, Scope.CALLS_READ)) as ann:
        call, ask = await asking(ann)
        answered = await answer(client, ask, decision="allow_always", scope="global")
        rules = (await ann.get("/v1/rules")).json()["data"]
        done = await ended(ann, call)

    assert (ask["principal"], answered.json()["answer"]["principal"], done["status"]) == ("ann", "admin", "completed")
    assert [(rule["principal"], rule["created_by"]) for rule in rules] == [("ann", answered.json()["answer"]["key"])]
    await asking(client)  # it counts for ann's calls alone


async def test_a_key_that_is_bound_to_sessions_sees_and_answers_asks_of_those_only(service: RunningService) -> None:
    assert await service.services.sessions.create(Session("ann", "work"))
    free = await key_with(service, Scope.CALLS_RUN, Scope.CALLS_READ)
    scopes = (Scope.ASKS_ANSWER, Scope.RULES_WRITE)
    bound = await key_with(service, *scopes, bounds=Bounds(sessions=("w*",)))
    async with service.client_of(free) as ann, service.client_of(bound) as eve:
        _, elsewhere = await asking(ann)
        mine = [(await asking(ann, session="work"))[1] for _ in range(3)]
        await asking(ann)
        pages = [(await eve.get("/v1/asks", params={"limit": 2})).json()]
        pages.append((await eve.get("/v1/asks", params={"limit": 2, "cursor": pages[0]["next_cursor"]})).json())
        hidden = [await eve.get(f"/v1/asks/{elsewhere['id']}"), await answer(eve, elsewhere, decision="allow")]
        too_far = await answer(eve, mine[0], decision="allow_always", scope="global")
        fine = await answer(eve, mine[0], decision="allow_always")

    assert [[ask["id"] for ask in page["data"]] for page in pages] == [[mine[2]["id"], mine[1]["id"]], [mine[0]["id"]]]
    assert pages[1]["next_cursor"] is None
    for answered in hidden:
        assert_problem(answered, 404, "NotFound")
    assert_problem(too_far, 403, "Forbidden")
    assert fine.json()["answer"]["scope"] == "session"


async def test_the_list_is_flat_newest_first_and_comes_in_pages(client: httpx.AsyncClient) -> None:
    asks = [(await asking(client, f"{number}/.env"))[1] for number in range(5)]
    await answer(client, asks[4], decision="deny")

    first = (await client.get("/v1/asks?status=open&limit=2")).json()
    second = (await client.get(f"/v1/asks?status=open&limit=2&cursor={first['next_cursor']}")).json()

    assert (first["data"], second["data"]) == ([asks[3], asks[2]], [asks[1], asks[0]])
    assert (first["next_cursor"], second["next_cursor"]) == (asks[2]["id"], None)
    everything = (await client.get("/v1/asks")).json()["data"]
    assert [ask["status"] for ask in everything] == ["answered", "open", "open", "open", "open"]


async def test_what_is_no_answer_at_all_is_refused_and_changes_nothing(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    cases: list[Any] = [
        {},
        [],
        {"decision": "maybe"},
        {"decision": "allow", "content": {}},
        {"decision": "allow", "scope": "session"},
        {"decision": "deny", "rule": {"pattern": "*"}},
        {"decision": "allow_always", "rule": {"pattern": ""}},
        {"decision": "allow_always", "rule": []},
        {"decision": "allow_always", "rule": {"pattern": "*", "action": "deny"}},
        {"decision": "allow_always", "scope": "everywhere"},
        {"decision": "allow", "message": ""},
        {"action": "run"},
        {"content": "Blue"},
    ]
    for body in cases:
        with subtests.test(body=body):
            _, ask = await asking(client)

            refused = await client.post(f"/v1/asks/{ask['id']}/answer", json=body)

            assert_problem(refused, 422, "InvalidRequest")
            assert (await client.get(f"/v1/asks/{ask['id']}")).json() == ask


async def test_the_answer_must_be_of_the_kind_that_was_asked_for(client: httpx.AsyncClient) -> None:
    _, permission = await asking(client)
    _, question = await questioning(client)

    wrong = [
        await answer(client, permission, content={"colour": "Blue"}),
        await answer(client, permission, action="decline"),
        await answer(client, question, decision="allow"),
    ]

    for refused in wrong:
        assert_problem(refused, 422, "InvalidRequest")
    assert wrong[0].json()["detail"] == f"The ask {permission['id']} is about a permission: answer with `decision`."
    assert "answer with `content`, or refuse with `action`" in wrong[2].json()["detail"]


async def test_a_rule_for_an_ask_about_several_permissions_says_which(client: httpx.AsyncClient) -> None:
    _, ask = await asked_by(client, {"tool": "both", "arguments": {"path": ".env"}})

    vague = await answer(client, ask, decision="allow_always", rule={"pattern": "*"})
    named = await answer(client, ask, decision="allow_always", rule={"permission": "edit", "pattern": "*"})

    assert_problem(vague, 422, "InvalidRequest")
    assert vague.json()["detail"] == "Say for each rule whether it is about edit or read."
    assert named.status_code == 200


async def test_the_answers_to_questions_reach_the_tool(service: RunningService, client: httpx.AsyncClient) -> None:
    call, ask = await questioning(client)
    waiting = (await client.get(f"/v1/calls/{call}")).json()

    answered = await answer(client, ask, content=CONTENT)

    assert (waiting["status"], waiting["waiting"]) == ("pending", "input")
    assert (ask["kind"], [question["id"] for question in ask["questions"]]) == ("question", ["colour", "why"])
    assert ask["questions"][0]["options"][-1]["is_other"]
    assert answered.json()["answer"]["content"] == CONTENT
    done = await ended(client, call)
    assert (done["status"], done["result"]["structured"]) == ("completed", {"answers": CONTENT})
    assert service.story(call)[2:4] == ["ask.opened", "ask.answered"]


async def test_each_question_is_answered_in_words(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "Not answered: colour, why."),
        ({"colour": "Blue"}, "Not answered: why."),
        (CONTENT | {"size": "L"}, "There is no question size; the questions are colour, why."),
        (CONTENT | {"why": ""}, "Expected a text or a list of texts that are not empty: why."),
        (CONTENT | {"why": []}, "Expected a text or a list of texts that are not empty: why."),
        (CONTENT | {"why": 7, "colour": [None]}, "Expected a text or a list of texts that are not empty: colour, why."),
    ]
    for content, wrong in cases:
        with subtests.test(content=content, wrong=wrong):
            _, ask = await questioning(client)

            refused = await answer(client, ask, content=content)

            assert_problem(refused, 422, "InvalidRequest")
            assert refused.json()["detail"] == wrong


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_who_will_not_answer_says_so(client: httpx.AsyncClient, action: str) -> None:
    call, ask = await questioning(client)

    await answer(client, ask, action=action, message="decide yourself")

    assert (await ended(client, call))["error"] == {
        "code": "Declined",
        "message": "The person did not answer: decide yourself",
        "retryable": False,
        "details": {"blocked": True, "action": action, "ask": ask["id"]},
    }


async def test_questions_nobody_answers_expire(client: httpx.AsyncClient) -> None:
    body = {"tool": "request_user_input", "arguments": {"questions": QUESTIONS}, "ask_timeout": 0.05}

    call = (await client.post("/v1/calls", json=body)).json()

    assert call["error"]["code"] == "AskExpired"
    assert call["error"]["message"].startswith("No person answered the questions within 0.05 s")


@pytest.mark.parametrize("kind", ["permission", "question"])
async def test_an_open_ask_is_the_same_one_after_a_restart(service: RunningService, kind: str) -> None:
    is_question = kind == "question"
    call, ask = await (questioning if is_question else asking)(service.client)
    await service.crash()
    await service.open()

    client = service.client
    assert (await client.get("/v1/asks", params={"status": "open"})).json()["data"] == [ask]
    still = (await client.get(f"/v1/calls/{call}")).json()
    assert (still["status"], still["waiting"]) == ("pending", "input" if is_question else "permission")
    assert (await answer(client, ask, **({"content": CONTENT} if is_question else {"decision": "allow"}))).is_success
    assert (await ended(client, call))["status"] == "completed"
    assert service.story(call).count("ask.opened") == 1


async def test_what_was_answered_before_a_restart_is_not_asked_again(service: RunningService) -> None:
    service.toys.started["wait"].clear()
    holder = await service.client.post(
        "/v1/calls", params={"wait": 0}, json={"tool": "wait", "arguments": {"effect": "write"}}
    )
    await service.started("wait")
    call, ask = await asking(service.client)
    await answer(service.client, ask, decision="allow")
    await service.at_the_gate(service.services.dispatcher.live_calls._calls[call])
    await service.crash()
    await service.open()

    assert (await ended(service.client, call))["status"] == "completed"
    assert (await ended(service.client, holder.json()["id"]))["error"]["code"] == "Interrupted"
    assert service.story(call).count("ask.opened") == 1


async def test_after_a_restart_with_stricter_rules_the_permission_is_asked_first_and_then_the_question_anew(
    service: RunningService,
) -> None:
    call, first = await questioning(service.client)
    await service.crash()
    service.settings["rules"] = [RuleSetting(permission="request_user_input", action=Action.ASK)]
    await service.open()

    client = service.client
    await until(lambda: service.story(call).count("ask.opened") == 2)
    permission = await open_ask(client, call)
    assert (permission["kind"], permission["needs"]) == (
        "permission",
        [{"permission": "request_user_input", "pattern": "*"}],
    )
    assert (await over(service, first))["reason"] == "More has to be asked."
    await answer(client, permission, decision="allow")
    second = await open_ask(client, call)
    await answer(client, second, content=CONTENT)

    assert (second["questions"], second["id"] != first["id"]) == (first["questions"], True)
    assert (await ended(client, call))["result"]["structured"] == {"answers": CONTENT}


@pytest.mark.parametrize("kind", ["permission", "question"])
async def test_a_deny_that_is_written_meanwhile_wins(
    service: RunningService, client: httpx.AsyncClient, kind: str
) -> None:
    call, ask = await (questioning if kind == "question" else asking)(client)
    tool = "request_user_input" if kind == "question" else "need"

    written = await client.post("/v1/rules", json={"permission": tool, "pattern": "*", "action": "deny"})
    if kind == "question":
        await answer(client, ask, content=CONTENT)

    assert written.status_code == 201
    done = await ended(client, call)
    assert (done["error"]["code"], done["started_at"]) == ("PermissionDenied", None)
    assert f"deny {tool} *" in done["error"]["message"]
    late = await answer(client, ask, **({"content": CONTENT} if kind == "question" else {"decision": "allow"}))
    assert_problem(late, 409, "AskEnded")


async def test_a_rule_that_allows_it_meanwhile_is_the_answer(
    service: RunningService, client: httpx.AsyncClient
) -> None:
    call, ask = await asking(client)

    await client.post("/v1/rules", json={"permission": "read", "pattern": "*.env", "action": "allow"})

    assert (await ended(client, call))["status"] == "completed"
    late = await answer(client, ask, decision="deny")
    assert_problem(late, 409, "AskEnded")
    assert late.json()["detail"].endswith("was answered already: allow_always by the rules.")


async def test_who_may_only_answer_hears_of_asks_and_of_nothing_else(service: RunningService) -> None:
    runner = await key_with(service, Scope.CALLS_RUN, Scope.CALLS_READ)
    reviewer = await key_with(service, Scope.ASKS_ANSWER)
    async with service.client_of(runner) as ann, service.client_of(reviewer) as eve:
        ticket = (await eve.post("/v1/tickets")).json()["ticket"]
        async with (
            listening(eve, "/v1/events") as by_key,
            service.client_of(None) as page,
            listening(page, f"/v1/events?ticket={ticket}") as by_ticket,
        ):
            call, ask = await asking(ann)
            await answer(eve, ask, decision="allow")
            await ended(ann, call)
            heard = [await stream.until("ask.answered") for stream in (by_key, by_ticket)]
        second = (await eve.post("/v1/tickets")).json()["ticket"]
        async with service.client_of(None) as page:
            refused = [
                await page.get(f"/v1/calls/{call}/events?ticket={second}"),
                await eve.get("/v1/events?types=ask.opened,call.completed"),
                await eve.post("/v1/tickets", json={"call": call}),
                await eve.get(f"/v1/calls/{call}/events"),
            ]

    assert [kinds(frames) for frames in heard] == [["ask.opened", "ask.answered"]] * 2
    assert heard[0][0].data["data"] == ask
    for answered in refused:
        assert_problem(answered, 403, "Forbidden")


async def test_no_secret_is_kept_in_an_answer(service: RunningService, client: httpx.AsyncClient) -> None:
    await client.put("/v1/secrets/DOOR", json={"value": "open-sesame-42"})
    call, question = await questioning(client)
    other, permission = await asking(client)

    refused = await answer(client, permission, decision="allow_always", rule={"pattern": "open-sesame-42/*"})
    await answer(client, permission, decision="deny", message="it is open-sesame-42")
    await answer(client, question, content={"colour": "open-sesame-42", "why": "[open-sesame-42]"})

    assert_problem(refused, 422, "InvalidRequest")
    assert "open-sesame" not in refused.text
    done = await ended(client, call)
    assert done["result"]["structured"] == {"answers": {"colour": "[redacted]", "why": "[[redacted]]"}}
    assert (await ended(client, other))["error"]["message"].endswith("it is [redacted]")
    assert "open-sesame" not in str(service.rows("SELECT * FROM asks") + service.events())


async def test_a_service_that_stops_takes_no_answer_to_a_call_that_goes_on_at_its_next_start(
    service: RunningService,
) -> None:
    _, ask = await asking(service.client)
    await service.house.drain()

    refused = await answer(service.client, ask, decision="allow")

    assert_problem(refused, 503, "Stopping")
    assert refused.headers["retry-after"] == "5"
