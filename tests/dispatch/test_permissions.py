"""What a call needs must be allowed; the rule that said no is named."""

import pytest

from app.config import RuleSetting
from app.core.errors import PermissionDenied
from app.core.rules import Action, Need, Rule
from app.dispatch.permissions import Permissions
from tests.services import Crib

ALLOW, ASK, DENY = Action.ALLOW, Action.ASK, Action.DENY
RULES = [Rule("*", "*", ALLOW), Rule("read", "*.env", DENY), Rule("edit", "src/*", ASK)]


async def test_what_is_allowed_passes() -> None:
    await Permissions(RULES).require([Need("read", "a.py"), Need("edit", "README.md")])
    await Permissions([]).require([])


async def test_a_denial_names_the_rule() -> None:
    with pytest.raises(PermissionDenied) as denied:
        await Permissions(RULES).require([Need("read", "a.py"), Need("edit", "src/a.py"), Need("read", "x.env")])

    assert denied.value.as_dict() == {
        "code": "PermissionDenied",
        "message": "Not allowed: read x.env is denied by the rule `deny read *.env`.",
        "retryable": False,
        "details": {"permission": "read", "pattern": "x.env", "rule": "deny read *.env"},
    }


async def test_what_would_have_to_be_asked_is_denied_while_nobody_can_answer() -> None:
    with pytest.raises(PermissionDenied) as denied:
        await Permissions(RULES).require([Need("edit", "src/a.py")])

    assert denied.value.message == (
        "Not allowed: edit src/a.py needs a person's approval (the rule `ask edit src/*`), "
        "and nobody can be asked here."
    )


async def test_what_the_defaults_ask_would_have_to_be_asked() -> None:
    with pytest.raises(PermissionDenied) as denied:
        await Permissions([]).require([Need("escalate", "ls")])

    assert denied.value.message == (
        "Not allowed: escalate ls needs a person's approval (the rule `ask escalate *`), and nobody can be asked here."
    )
    assert denied.value.details == {"permission": "escalate", "pattern": "ls", "rule": "ask escalate *"}


@pytest.mark.parametrize(
    ("action", "story"),
    [(DENY, ["call.pending", "call.error"]), (ASK, ["call.pending", "call.error"])],
)
async def test_a_call_that_is_not_allowed_ends_before_it_runs(crib: Crib, action: Action, story: list[str]) -> None:
    crib.settings["rules"] = [
        RuleSetting(action=ALLOW),
        RuleSetting(permission="read", pattern="secret/*", action=action),
    ]
    await crib.open()

    allowed = await crib.run("need", {"path": "open.txt"})
    refused = await crib.run("need", {"path": "secret/a"})

    assert allowed["result"]["output"] == "had open.txt"
    assert refused["error"]["code"] == "PermissionDenied"
    assert refused["error"]["details"] == {
        "permission": "read",
        "pattern": "secret/a",
        "rule": f"{action} read secret/*",
    }
    assert (refused["started_at"], crib.story(refused["id"])) == (None, story)


async def test_a_tool_that_calls_a_tool_cannot_reach_further_than_the_rules(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(action=ALLOW), RuleSetting(permission="read", pattern="x", action=DENY)]
    await crib.open()

    view = await crib.run("relay", {"tool": "need", "arguments": {"path": "x"}})

    assert view["error"]["code"] == "PermissionDenied"


async def test_a_running_tool_may_require_more(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(action=ALLOW), RuleSetting(permission="shell", pattern="rm *", action=DENY)]
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    (ctx,) = crib.toys.contexts

    await ctx.ask("shell", ["ls", "git status"])
    with pytest.raises(PermissionDenied, match="shell rm -rf / is denied"):
        await ctx.ask("shell", ["ls", "rm -rf /"])

    crib.toys.go["wait"].set()
    assert (await crib.ended(live))["status"] == "completed"
