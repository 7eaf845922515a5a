"""Escalations: a reason is required, and what an "always" would allow is never wider than a command."""

from dataclasses import dataclass
from typing import Literal

import pytest

from app.core.errors import InvalidArgs
from app.core.escalation import always_of, explained, is_escalated, require_reason


@dataclass
class Wish:
    sandbox_permissions: Literal["use_default", "require_escalated"] | None = None
    justification: str | None = None
    prefix_rule: list[str] | None = None


@pytest.mark.parametrize("reason", [None, "", "  \n"])
def test_who_asks_has_to_say_why(reason: str | None) -> None:
    with pytest.raises(InvalidArgs, match="`justification`"):
        require_reason(Wish("require_escalated", reason))


@pytest.mark.parametrize("wish", [Wish(), Wish("use_default"), Wish(None, "because"), Wish("use_default", "because")])
def test_a_reason_without_the_wish_means_nothing(wish: Wish) -> None:
    require_reason(wish)

    assert not is_escalated(wish)
    assert explained(wish) == {}


def test_the_reason_is_shown() -> None:
    wish = Wish("require_escalated", " May I? ")

    require_reason(wish)

    assert explained(wish) == {"justification": "May I?"}


def test_a_proposed_always_counts_only_if_it_is_narrow(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str] | None, str, str | None]] = [
        (["git", "pull"], "git pull --rebase", "git pull *"),
        (["git", "pull"], "git pull", "git pull *"),
        (["npm", "run", "test"], "npm run test -- -u", "npm run test *"),
        (["python", "manage.py"], "python manage.py migrate", "python manage.py *"),
        (["git", "pull"], "git push", None),
        (["git", "pull"], "git pullover", None),
        (["git", "*"], "git push", None),
        (["git", "pul?"], "git pull", None),
        (["git\n", "pull"], "git pull", None),
        ([], "git pull", None),
        ([""], "git pull", None),
        (None, "git pull", None),
        (["bash"], "bash x", None),
        (["/bin/bash"], "/bin/bash x", None),
        (["bash", "-lc"], "bash -lc x", None),
        (["python3"], "python3 x.py", None),
        (["python3", "-c"], "python3 -c x", None),
        (["env", "A=b"], "env A=b rm x", None),
        (["sudo"], "sudo ls", None),
        (["sudo", "-u"], "sudo -u root ls", None),
        (["sudo", "bash"], "sudo bash x", None),
        (["sudo", "env", "rm"], "sudo env rm x", None),
        (["node"], "node x.js", None),
    ]
    for prefix, command, always in cases:
        with subtests.test(prefix=prefix, command=command, always=always):
            assert always_of(prefix, command) == always
