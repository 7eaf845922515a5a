"""Arities: which words of a command tell what it does."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.text.bash.needs import ARITIES, arity


def prefix(words: list[str]) -> list[str]:
    return words[: arity(words)]


def always(words: list[str]) -> str:
    return " ".join([*prefix(words), "*"])


CASES = json.loads((Path(__file__).parent.parent / "scenarios" / "arity.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["tokens"]))
def test_it_answers_as_the_peer_did(case: dict[str, Any]) -> None:
    assert prefix(case["tokens"]) == case["prefix"]
    assert always(case["tokens"]) == case["always"]


def test_the_longest_entry_counts_and_what_is_unknown_is_told_by_one_word(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("npm install left-pad", "npm install *"),
        ("npm run dev -- --port 1", "npm run dev *"),
        ("npm", "npm *"),
        ("git", "git *"),
        ("git stash", "git stash *"),
        ("git stash pop", "git stash pop *"),
        ("git remote add origin url", "git remote add *"),
        ("docker run nginx", "docker run *"),
        ("docker compose", "docker compose *"),
        ("terraform workspace select prod", "terraform workspace select *"),
        ("gh pr list --limit 3", "gh pr list *"),
        ("rm -rf build", "rm *"),
        ("python -m venv env", "python -m *"),
        ("python3 -m venv env", "python3 *"),
        ("GIT push", "GIT *"),
        ("docker-compose up", "docker-compose *"),
    ]
    for command, expected in cases:
        with subtests.test(command=command, expected=expected):
            assert always(command.split()) == expected


def test_words_that_hold_blanks_are_not_taken_for_several() -> None:
    assert prefix(["git stash", "pop"]) == ["git stash"]


def test_no_words_have_no_prefix() -> None:
    assert prefix([]) == []


def test_a_longer_entry_is_there_only_where_it_says_something_else() -> None:
    assert all(ARITIES[entry[:1]] != count for entry, count in ARITIES.items() if len(entry) > 1)
