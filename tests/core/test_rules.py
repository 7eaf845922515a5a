import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.rules import ALLOWED, STRICTNESS, Action, Layer, Need, Rule, Verdict, expression, matches
from app.core.rules import judge as judge_layers

SCENARIOS = Path(__file__).parent.parent / "scenarios"
WILDCARDS = json.loads((SCENARIOS / "wildcard.json").read_text())
EVALUATIONS = json.loads((SCENARIOS / "permission_evaluate.json").read_text())

READ = Need("read", "src/a.py")
SHELL = Need("shell", "git push origin")


def judge(needs: list[Need], rules: list[Rule]) -> Verdict:
    return judge_layers(needs, [Layer("rules", tuple(rules))])


def test_wildcards_match_as_in_opencode(subtests: pytest.Subtests) -> None:
    for case in WILDCARDS:
        with subtests.test(case=case):
            assert matches(case["pattern"], case["input"]) is case["match"]


def test_rules_judge_as_in_opencode(subtests: pytest.Subtests) -> None:
    for case in EVALUATIONS:
        with subtests.test(case=case):
            rules = [Rule(rule["permission"], rule["pattern"], Action(rule["action"])) for rule in case["rules"]]

            assert judge([Need(case["permission"], case["pattern"])], rules).action == case["action"]


@given(st.text(), st.text())
def test_a_star_on_both_sides_finds_any_part(before: str, after: str) -> None:
    assert matches("*", before + after)
    assert matches("*needle*", f"{before}needle{after}")


@given(st.text().filter(lambda text: not set(text) & set("*?") and not text.endswith(" ")), st.text())
def test_a_pattern_without_wildcards_matches_only_itself(pattern: str, text: str) -> None:
    assert matches(pattern, pattern)
    assert matches(pattern, text) == (pattern.replace("\\", "/") == text.replace("\\", "/"))


def test_backslashes_are_slashes_on_both_sides() -> None:
    assert matches("src\\*", "src/a.py")
    assert matches("src/*", "src\\a.py")


def test_the_last_matching_rule_wins_and_a_no_names_it() -> None:
    wide, narrow = Rule("*", "*", Action.ALLOW), Rule("read", "src/*", Action.DENY)

    assert judge([READ], [wide, narrow]) == Verdict(Action.DENY, READ, narrow, "rules")
    assert judge([READ], [narrow, wide]).action is Action.ALLOW


def test_a_rule_covers_a_need_only_when_permission_and_pattern_both_match() -> None:
    rules = [Rule("shell", "src/*", Action.ALLOW), Rule("read", "git *", Action.ALLOW)]

    assert judge([READ], rules) == Verdict(Action.ASK, READ, None)


def test_no_match_asks() -> None:
    assert judge([READ], []) == Verdict(Action.ASK, READ, None)


def test_over_several_needs_the_strictest_answer_counts() -> None:
    allow_read, deny_shell = Rule("read", "*", Action.ALLOW), Rule("shell", "*", Action.DENY)
    other = Need("network", "example.org")

    assert judge([READ, SHELL, other], [allow_read, deny_shell]) == Verdict(Action.DENY, SHELL, deny_shell, "rules")
    assert judge([READ, other], [allow_read, deny_shell]) == Verdict(Action.ASK, other, None)


@given(st.permutations([Action.ALLOW, Action.ASK, Action.DENY]))
def test_the_order_of_needs_does_not_change_the_action(actions: list[Action]) -> None:
    rules = [Rule(str(action), "*", action) for action in Action]

    verdict = judge([Need(str(action), "x") for action in actions], rules)

    assert verdict.action == max(Action, key=STRICTNESS.__getitem__) == Action.DENY


def test_a_call_that_needs_nothing_is_allowed() -> None:
    assert judge([], [Rule("*", "*", Action.DENY)]) == ALLOWED


def test_a_rule_reads_as_a_line() -> None:
    assert str(Rule("shell", "git push *", Action.ASK)) == "ask shell git push *"


def test_of_several_equally_strict_answers_the_first_is_named() -> None:
    assert judge([READ, SHELL], []) == Verdict(Action.ASK, READ, None)


@given(st.text("ab?* \n\\.(", max_size=12), st.text("ab \n/.(", max_size=12))
def test_a_pattern_matches_what_its_expression_does(pattern: str, text: str) -> None:
    expected = re.fullmatch(expression(pattern), text, re.DOTALL) is not None

    assert matches(pattern, text) is expected


@pytest.mark.parametrize("end", ["b", "b *"])
def test_no_pattern_takes_ages(end: str) -> None:
    """Tried every way, this one would take longer than the universe has."""
    assert not matches("*a" * 100 + end, "a" * 10_000)
