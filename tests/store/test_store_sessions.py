"""Sessions, kept: as they were written, changed only by who saw them last, listed within what is seen."""

from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.network_policy import DomainSecret, NetworkPolicy
from app.core.rules import Action, Rule
from app.core.sessions import Session
from app.store import rules, sessions
from app.store.visibility import SessionFilter
from app.store.writer import Batch, Writer
from tests.store.toy_changes import stored

FULL = Session(
    "ada",
    "blue",
    agent="builder",
    model="gpt-5.2",
    workspace="/srv/blue",
    approval="never",
    rules=(Rule("edit", "*", Action.DENY),),
    is_trusted=True,
    network_policy=NetworkPolicy("allowlist", ("a.example",), (DomainSecret("a.example", "KEY"),)),
    env={"A": "1", "B": {"secret": "KEY"}},
    labels={"team": "blue"},
    created_at=5,
    updated_at=6,
)


async def keep(writer: Writer, *made: Session) -> None:
    for session in made:
        assert await writer.submit(partial(sessions.add, session=session))


def named(principal: str, id: str, workspace: str | None = None) -> Session:
    return Session(principal, id, workspace=workspace)


async def test_a_session_comes_back_as_it_was_kept(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, FULL)

    assert await sessions.get(engine, "ada", "blue") == FULL


async def test_an_id_is_taken_once_per_principal(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, FULL, replace(FULL, principal="bob"))

    assert not await writer.submit(partial(sessions.add, session=Session("ada", "blue")))
    assert await sessions.get(engine, "ada", "blue") == FULL


async def test_a_change_counts_only_on_what_was_seen_and_keeps_workspace_plan_and_birth(
    writer: Writer, engine: AsyncEngine
) -> None:
    await keep(writer, FULL, replace(FULL, principal="bob"))
    await writer.submit(partial(sessions.save_plan, session=FULL, plan="the plan"))
    bare = Session("ada", "blue", workspace="/elsewhere", labels={"n": "1"}, created_at=99, updated_at=7)

    assert await writer.submit(partial(sessions.replace, session=bare, was=6))
    assert not await writer.submit(partial(sessions.replace, session=replace(FULL, updated_at=8), was=6))

    assert await sessions.get(engine, "ada", "blue") == replace(bare, workspace="/srv/blue", created_at=5)
    assert await sessions.plan_of(engine, FULL) == "the plan"
    assert await sessions.get(engine, "bob", "blue") == replace(FULL, principal="bob")


async def test_a_removed_session_is_gone_and_its_id_is_free(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, FULL, replace(FULL, id="red"), replace(FULL, principal="bob"))
    await writer.submit(partial(sessions.save_plan, session=FULL, plan="the plan"))

    assert await writer.submit(partial(sessions.remove, session=FULL))
    assert not await writer.submit(partial(sessions.remove, session=FULL))
    await keep(writer, Session("ada", "blue"))

    assert await sessions.plan_of(engine, FULL) is None
    assert [(one.principal, one.id) for one in await sessions.page(engine, None, None, 10)] == [
        ("ada", "blue"),
        ("ada", "red"),
        ("bob", "blue"),
    ]


async def test_pages_go_by_principal_and_id_without_gap_or_repeat(writer: Writer, engine: AsyncEngine) -> None:
    names = [(principal, f"s{number}") for principal in ("ada", "bob") for number in range(5)]
    await keep(writer, *(named(*name) for name in reversed(names)))

    found, after = [], None
    while page := await sessions.page(engine, None, after, 3):
        found += [(one.principal, one.id) for one in page]
        after = found[-1]

    assert found == names
    assert [one.id for one in await sessions.page(engine, "bob", ("bob", "s2"), 10)] == ["s3", "s4"]


SEEN = [
    (SessionFilter(sessions=("ci-*",)), ["ci-1", "ci-deep"]),
    (SessionFilter(sessions=("CI-*",)), []),
    (SessionFilter(sessions=("default", "ci-?")), ["ci-1", "default"]),
    (SessionFilter(sessions=("c.-1", "[a-z]*", "%", "_i-1")), []),
    (SessionFilter(workspaces=("/srv/a",)), ["ci-1", "ci-deep"]),
    (SessionFilter(workspaces=("/srv/a",), sees_default_workspace=True), ["ci-1", "ci-deep", "default"]),
    (SessionFilter(workspaces=("/srv/a/",)), ["ci-deep"]),
    (SessionFilter(workspaces=("/",)), ["ci-1", "ci-deep", "other"]),
    (SessionFilter(workspaces=("/srv/A", "/srv", "/x%")), ["ci-1", "ci-deep", "other"]),
    (SessionFilter(sessions=("other", "ci-1"), workspaces=("/srv/a",)), ["ci-1"]),
]


@pytest.mark.parametrize(("session_filter", "ids"), SEEN)
async def test_who_is_bound_sees_only_what_fits(
    writer: Writer, engine: AsyncEngine, session_filter: SessionFilter, ids: list[str]
) -> None:
    await keep(
        writer,
        named("ada", "default"),
        named("ada", "ci-1", "/srv/a"),
        named("ada", "ci-deep", "/srv/a/b"),
        named("ada", "other", "/srv/ab"),
    )

    assert [one.id for one in await sessions.page(engine, "ada", None, 10, session_filter)] == ids
    assert await sessions.visible_keys(engine, None, session_filter) == {("ada", id) for id in ids}


async def test_roots_are_told_once_each_but_for_those_made_here(writer: Writer, engine: AsyncEngine) -> None:
    await keep(
        writer,
        named("ada", "default"),
        named("ada", "one", "/srv/a"),
        named("bob", "two", "/srv/a"),
        named("bob", "three", "/data/workspaces/bob/three"),
        named("bob", "four", "/data/workspaces-not"),
    )

    assert sorted(await sessions.workspaces(engine, "/data/workspaces")) == ["/data/workspaces-not", "/srv/a"]


async def test_the_rules_of_one_session_go_and_all_others_stay(writer: Writer, url: URL) -> None:
    rows = [
        ("1", "ada", "session", "blue"),
        ("2", "ada", "session", "red"),
        ("3", "bob", "session", "blue"),
        ("4", "ada", "workspace", "blue"),
        ("5", "ada", "global", None),
    ]

    def write(batch: Batch) -> None:
        for id, principal, scope, session in rows:
            batch._cursor.execute(
                "INSERT INTO rules (id, principal, scope, session, permission, pattern, action, created_at)"
                " VALUES (?, ?, ?, ?, 'edit', '*', 'allow', 0)",
                (id, principal, scope, session),
            )

    await writer.submit(write)

    assert await writer.submit(partial(rules.remove_of_session, principal="ada", session="blue")) == 1
    assert [id for (id,) in stored(url, "SELECT id FROM rules ORDER BY id")] == ["2", "3", "4", "5"]
