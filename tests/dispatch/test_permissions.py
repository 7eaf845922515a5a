"""What a call needs must be allowed, layer upon layer; the rule that said no is named."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from app.config import AgentSetting, RuleSetting
from app.core.errors import PermissionDenied
from app.core.principals import UNBOUND, Bounds, Key
from app.core.rules import Action, Need, Rule, RuleScope, StoredRule
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.sessions import Session
from app.core.tools import Tool
from app.dispatch.permission.permissions import Permissions, RuleSource
from app.dispatch.permission.rules import RuleStore
from tests.support.services import Crib
from tests.support.toy_tools import Toys

ALLOW, ASK, DENY = Action.ALLOW, Action.ASK, Action.DENY
EDIT = Need("edit", "src/a.py")
SESSION = Session("ada", "s1", agent="coder", workspace="/srv/ws")
KEY = Key("key_1", "ada", "", frozenset(), "", 0)
TOOL: Tool = next(tool for tool in Toys().tools if tool.name == "need")

numbers = count()


def kept(action: Action, scope: RuleScope, principal: str = "ada", pattern: str = "*", **more: Any) -> StoredRule:
    rule = Rule("edit", pattern, action)
    where = {RuleScope.SESSION: {"session": "s1"}, RuleScope.WORKSPACE: {"workspace": "/srv/ws"}}
    more = where.get(scope, {}) | more
    return StoredRule(id=f"rule_{next(numbers):03d}", principal=principal, rule=rule, scope=scope, **more)


def answered(action: Action, scope: RuleScope = RuleScope.SESSION) -> StoredRule:
    return kept(action, scope, ask="ask_1")


class House:
    """All layers, empty until a test writes into them."""

    def __init__(self, book: RuleStore) -> None:
        self.book = book
        self.configuration = RuleSource()
        self.agents: dict[str, RuleSource] = {}
        self.key = KEY
        self.session = SESSION

    def says(self, need: Need = EDIT, tool: Tool = TOOL) -> Action:
        permissions = Permissions(self.configuration, self.agents, self.book)
        [verdict] = permissions.verdicts(tool, [need], self.session, self.key)
        return verdict.action

    def put(self, layer: str, action: Action, *, trusted: bool = False) -> None:
        rules = (Rule("edit", "*", action),)
        match layer:
            case "configuration":
                self.configuration = RuleSource(rules)
            case "agent":
                self.agents["coder"] = RuleSource(rules)
            case "global":
                self.book.put(kept(action, RuleScope.GLOBAL, GLOBAL_PRINCIPAL))
            case "own global":
                self.book.put(kept(action, RuleScope.GLOBAL))
            case "workspace":
                self.book.put(kept(action, RuleScope.WORKSPACE, GLOBAL_PRINCIPAL))
            case "own workspace":
                self.book.put(kept(action, RuleScope.WORKSPACE))
            case "key":
                self.key = replace(self.key, bounds=replace(UNBOUND, rules=rules))
            case "session":
                self.session = replace(self.session, rules=rules, is_trusted=trusted)
            case "answers":
                self.book.put(answered(action))


DECIDING = ["configuration", "agent", "global", "workspace", "key"]
LOOSENING = ["own global", "own workspace", "answers"]


@pytest.fixture
async def house(crib: Crib) -> House:
    await crib.open()
    return House(RuleStore(crib.services.writer, []))


@pytest.mark.parametrize(
    ("need", "action"),
    [
        (Need("read", "src/a.py"), ALLOW),
        (Need("edit", "src/a.py"), ALLOW),
        (Need("read", ".env"), ASK),
        (Need("edit", "deep/.env"), ASK),
        (Need("read", ".env.local"), ASK),
        (Need("read", ".env.example"), ALLOW),
        (Need("external_directory", "/mnt/data"), ASK),
        (Need("doom_loop", "read_file"), ASK),
        (Need("escalate", "network"), ASK),
        (Need("shell", "ls"), ALLOW),
    ],
)
async def test_the_defaults_allow_but_ask_where_it_hurts(house: House, need: Need, action: Action) -> None:
    assert house.says(need) is action


@pytest.mark.parametrize("lower", range(len(DECIDING)))
@pytest.mark.parametrize("upper", range(len(DECIDING)))
async def test_of_the_operators_layers_the_later_one_decides(house: House, lower: int, upper: int) -> None:
    if lower >= upper:
        return
    house.put(DECIDING[lower], DENY)
    assert house.says() is DENY

    house.put(DECIDING[upper], ALLOW)
    assert house.says() is ALLOW


@pytest.mark.parametrize("layer", LOOSENING)
async def test_what_a_principal_wrote_itself_turns_ask_into_allow_and_never_touches_a_deny(
    house: House, layer: str
) -> None:
    house.put(layer, ALLOW)
    house.put("configuration", ASK)
    assert house.says() is ALLOW

    house.put("configuration", DENY)
    assert house.says() is DENY


@pytest.mark.parametrize("layer", DECIDING)
@pytest.mark.parametrize("said", [ASK, DENY])
async def test_a_session_rule_of_a_key_that_may_not_write_rules_loosens_nothing(
    house: House, layer: str, said: Action
) -> None:
    house.put(layer, said)
    house.put("session", ALLOW, trusted=False)

    assert house.says() is said


@pytest.mark.parametrize("layer", DECIDING)
async def test_a_trusted_session_rule_turns_ask_into_allow_but_a_deny_of_the_operator_is_final(
    house: House, layer: str
) -> None:
    house.put("session", ALLOW, trusted=True)
    house.put(layer, ASK)
    assert house.says() is ALLOW

    house.put(layer, DENY)
    assert house.says() is DENY


@pytest.mark.parametrize("trusted", [True, False])
async def test_everybody_may_tighten(house: House, trusted: bool) -> None:
    house.put("session", DENY, trusted=trusted)
    assert house.says() is DENY

    house.put("answers", ALLOW)
    assert house.says() is DENY


async def test_rules_of_other_sessions_workspaces_and_principals_do_not_count(house: House) -> None:
    house.book.put(
        kept(DENY, RuleScope.SESSION, session="s2"),
        kept(DENY, RuleScope.WORKSPACE, workspace="/srv/other"),
        kept(DENY, RuleScope.GLOBAL, "eve"),
    )
    assert house.says() is ALLOW

    house.session = replace(house.session, workspace=None)
    house.book.put(kept(DENY, RuleScope.WORKSPACE, workspace="default"))
    assert house.says() is DENY


async def test_an_agents_rules_count_for_its_name_only(house: House) -> None:
    house.agents["reviewer"] = RuleSource((Rule("edit", "*", DENY),))
    assert house.says() is ALLOW

    house.session = replace(house.session, agent="reviewer")
    assert house.says() is DENY


@pytest.mark.parametrize("layer", ["configuration", "agent", "key", "session"])
async def test_untrusted_asks_for_all_but_reading_and_never_loosens(house: House, layer: str) -> None:
    await approve(house, layer, "untrusted")

    assert house.says(Need("read", "a.py")) is ALLOW
    assert house.says(Need("read", ".env")) is ASK
    assert house.says(EDIT) is ASK
    assert house.says(Need("shell", "ls")) is ASK


async def test_a_rule_or_an_answer_after_the_preset_allows_again(house: House) -> None:
    await approve(house, "configuration", "untrusted")
    house.put("answers", ALLOW)

    assert house.says() is ALLOW


async def test_a_deny_before_the_preset_stays(house: House) -> None:
    house.put("configuration", DENY)
    await approve(house, "key", "untrusted")

    assert house.says() is DENY


@pytest.mark.parametrize("layer", ["configuration", "agent", "key", "session"])
async def test_never_denies_what_would_ask(house: House, layer: str) -> None:
    await approve(house, layer, "never")

    assert (house.says(Need("read", ".env")), house.says()) == (DENY, ALLOW)


async def approve(house: House, layer: str, approval: Any) -> None:
    match layer:
        case "configuration":
            house.configuration = replace(house.configuration, approval=approval)
        case "agent":
            house.agents["coder"] = RuleSource(approval=approval)
        case "key":
            house.key = replace(house.key, bounds=replace(UNBOUND, approval=approval))
        case "session":
            house.session = replace(house.session, approval=approval)


async def test_a_tools_own_name_works_as_a_permission(house: House) -> None:
    house.configuration = RuleSource((Rule("need", "src/*", DENY),))

    assert house.says(EDIT) is DENY
    assert house.says(Need("edit", "README.md")) is ALLOW


async def test_a_tool_that_needs_nothing_needs_itself(house: House) -> None:
    permissions = Permissions(RuleSource((Rule("need", "*", DENY),)), {}, house.book)

    [verdict] = permissions.verdicts(TOOL, [], SESSION, None)

    assert (verdict.action, verdict.need) == (DENY, Need("need", "*"))


async def test_a_key_bound_to_tools_may_use_no_other(house: House) -> None:
    house.key = replace(KEY, bounds=Bounds(tools=("echo", "no*")))
    permissions = Permissions(RuleSource(), {}, house.book)

    assert house.says() is DENY
    assert permissions.hides(TOOL, SESSION, house.key)


@pytest.mark.parametrize(
    ("rules", "is_hidden"),
    [
        ([("need", "*", DENY)], True),
        ([("*", "*", DENY)], True),
        ([("need", "src/*", DENY)], False),
        ([("need", "*", DENY), ("need", "src/*", ALLOW)], False),
        ([("need", "src/*", ALLOW), ("need", "*", DENY)], True),
        ([("need", "*", ASK)], False),
        ([("edit", "*", DENY)], False),
    ],
)
async def test_a_tool_is_hidden_when_its_last_rule_is_a_blanket_deny(
    house: House, rules: list[tuple[str, str, Action]], is_hidden: bool
) -> None:
    permissions = Permissions(RuleSource(tuple(Rule(*rule) for rule in rules)), {}, house.book)

    assert permissions.hides(TOOL, SESSION, None) is is_hidden


async def test_a_tool_hides_behind_the_permission_it_is_about(house: House) -> None:
    permissions = Permissions(RuleSource((Rule("read", "*", DENY),)), {}, house.book)

    assert permissions.hides(replace(TOOL, permission="read"), SESSION, None)
    assert not permissions.hides(TOOL, SESSION, None)


async def test_a_change_of_the_book_counts_at_once(house: House) -> None:
    permissions = Permissions(RuleSource(), {}, house.book)
    assert permissions.verdicts(TOOL, [EDIT], SESSION, None)[0].action is ALLOW

    mine = kept(DENY, RuleScope.GLOBAL)
    await house.book.add(mine)
    assert permissions.verdicts(TOOL, [EDIT], SESSION, None)[0].action is DENY

    assert await house.book.drop(mine.id)
    assert permissions.verdicts(TOOL, [EDIT], SESSION, None)[0].action is ALLOW
    assert not await house.book.drop(mine.id)


async def test_rules_written_at_run_time_are_there_after_a_restart(crib: Crib) -> None:
    await crib.open()
    mine = kept(DENY, RuleScope.GLOBAL, "admin", pattern="secret/*", created_by="key_9", created_at=5)
    await crib.services.rules.add(mine)
    await crib.close()
    await crib.open()

    assert crib.services.rules.listed("admin") == [mine]
    assert crib.services.rules.listed("eve") == []
    assert crib.services.rules.get(mine.id, "eve") is None


@pytest.mark.parametrize("on_ask", ["deny"])
@pytest.mark.parametrize("action", [DENY, ASK])
async def test_a_call_that_is_not_allowed_ends_before_it_runs(crib: Crib, action: Action, on_ask: str) -> None:
    crib.settings |= {
        "on_ask": on_ask,
        "rules": [RuleSetting(permission="read", pattern="secret/*", action=action)],
    }
    await crib.open()

    allowed = await crib.run("need", {"path": "open.txt"})
    refused = await crib.run("need", {"path": "secret/a"})

    assert allowed["result"]["output"] == "had open.txt"
    assert refused["error"]["code"] == "PermissionDenied"
    assert refused["error"]["details"]["pattern"] == "secret/a"
    assert (refused["started_at"], crib.story(refused["id"])) == (None, ["call.pending", "call.error"])


async def test_a_denial_names_the_rule(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(permission="read", pattern="secret/*", action=DENY)]
    await crib.open()

    assert (await crib.run("need", {"path": "secret/a"}))["error"] == {
        "code": "PermissionDenied",
        "message": "Not allowed: read secret/a is denied by the rule `deny read secret/*`.",
        "retryable": False,
        "details": {"permission": "read", "pattern": "secret/a", "rule": "deny read secret/*"},
    }


async def test_never_says_which_part_said_so(crib: Crib) -> None:
    crib.settings |= {"agents": {"bot": AgentSetting()}, "approval": "never"}
    await crib.open()

    assert (await crib.run("need", {"path": ".env"}))["error"]["message"] == (
        "Not allowed: read .env would have to be asked (approval `never` of the configuration)."
    )


async def test_a_tool_that_calls_a_tool_cannot_reach_further_than_the_rules(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(permission="read", pattern="x", action=DENY)]
    await crib.open()

    view = await crib.run("relay", {"tool": "need", "arguments": {"path": "x"}})

    assert view["error"]["code"] == "PermissionDenied"


async def test_a_running_tool_may_require_more(crib: Crib) -> None:
    crib.settings["rules"] = [RuleSetting(permission="shell", pattern="rm *", action=DENY)]
    await crib.open()
    live = crib.submit("wait")
    await crib.started("wait")
    (ctx,) = crib.toys.contexts

    await ctx.ask("shell", ["ls", "git status"])
    with pytest.raises(PermissionDenied, match="shell rm -rf / is denied"):
        await ctx.ask("shell", ["ls", "rm -rf /"])

    crib.toys.go["wait"].set()
    assert (await crib.ended(live))["status"] == "completed"


@pytest.mark.parametrize("bounds", [Bounds(rules=(Rule("read", "x", DENY),)), Bounds(tools=("relay",))])
async def test_a_tool_that_calls_a_tool_cannot_reach_further_than_its_callers_key(crib: Crib, bounds: Bounds) -> None:
    await crib.open()
    request = crib.request("relay", {"tool": "need", "arguments": {"path": "x"}})

    live = crib.services.dispatcher.submit(request, Session("admin", "default"), key=replace(KEY, bounds=bounds))

    assert (await crib.ended(live))["error"]["code"] == "PermissionDenied"
