import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.principals import DEFAULT_SCOPES, Key, Scope, digest
from app.core.sessions import Session
from app.store import principals, sessions
from app.store.principals import PREFIX_LENGTH, Keyring
from app.store.writer import Writer

ADAS = Key("key_1", "ada", "laptop", DEFAULT_SCOPES, digest("tk_ada"), 1)
ADAS_SECOND = Key("key_2", "ada", "phone", frozenset({Scope.METRICS}), digest("tk_ada_2"), 2)
BOBS = Key("key_3", "bob", "", frozenset({Scope.ADMIN}), digest("tk_bob"), 3)


async def keep(writer: Writer, *keys: Key) -> None:
    for key in keys:
        await writer.submit(partial(principals.add_key, key=key))


async def test_keys_come_back_as_they_were_kept_in_the_order_of_their_ids(writer: Writer, engine: AsyncEngine) -> None:
    revoked = replace(ADAS_SECOND, revoked_at=9)

    await keep(writer, BOBS, revoked, ADAS)

    assert await principals.all_keys(engine) == [ADAS, revoked, BOBS]


async def test_a_token_is_nowhere_in_the_database(writer: Writer, url: URL) -> None:
    await keep(writer, ADAS)

    with closing(sqlite3.connect(str(url.database))) as db:
        assert b"tk_ada" not in "\n".join(db.iterdump()).encode()


async def test_a_first_key_makes_its_principal_and_default_session_and_a_second_one_leaves_them(
    writer: Writer, engine: AsyncEngine, url: URL
) -> None:
    await keep(writer, ADAS)
    await writer.submit(lambda batch: sessions.save_plan(batch, Session("ada", "default"), "plan"))
    await keep(writer, ADAS_SECOND)

    with closing(sqlite3.connect(str(url.database))) as db:
        assert db.execute("SELECT id, created_at FROM principals").fetchall() == [("ada", 1)]
    assert await sessions.get(engine, "ada", "default") == Session("ada", "default", created_at=1, updated_at=1)
    assert await sessions.plan_of(engine, Session("ada", "default")) == "plan"


async def test_a_token_can_be_kept_only_once(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, ADAS)

    with pytest.raises(sqlite3.IntegrityError):
        await keep(writer, replace(ADAS, id="key_9", principal="eve"))

    assert await principals.all_keys(engine) == [ADAS]
    assert await sessions.get(engine, "eve", "default") is None


async def test_a_key_is_revoked_once(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, ADAS, BOBS)

    assert await writer.submit(lambda batch: principals.revoke(batch, "key_1", 5)) is True
    assert await writer.submit(lambda batch: principals.revoke(batch, "key_1", 6)) is False
    assert await writer.submit(lambda batch: principals.revoke(batch, "key_0", 6)) is False

    assert await principals.all_keys(engine) == [replace(ADAS, revoked_at=5), BOBS]


def test_a_keyring_finds_the_key_of_a_token_and_nothing_else() -> None:
    keyring = Keyring([ADAS, BOBS])

    assert keyring.find("tk_ada") == ADAS
    assert keyring.find("tk_bob") == BOBS
    wrong = ["", "tk_", "tk_eve", "TK_ADA", "tk_ada ", ADAS.digest, "\udce9"]
    assert [keyring.find(token) for token in wrong] == [None] * len(wrong)


def test_a_digest_that_only_begins_like_a_known_one_opens_nothing() -> None:
    known = hashlib.sha256(b"tk_ada").hexdigest()
    keyring = Keyring([replace(ADAS, digest=known[:PREFIX_LENGTH] + "0" * (len(known) - PREFIX_LENGTH))])

    assert keyring.find("tk_ada") is None


def test_a_keyring_leaves_revoked_keys_out() -> None:
    keyring = Keyring([replace(ADAS, revoked_at=5), BOBS])

    assert (keyring.find("tk_ada"), keyring.find("tk_bob")) == (None, BOBS)


def test_a_key_works_from_when_it_is_put_until_it_is_dropped() -> None:
    keyring = Keyring([BOBS])

    keyring.put(ADAS)
    assert keyring.find("tk_ada") == ADAS
    keyring.remove("key_1")
    keyring.remove("key_1")
    assert (keyring.find("tk_ada"), keyring.find("tk_bob")) == (None, BOBS)


async def test_a_session_is_known_only_to_its_principal(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, ADAS)

    assert await sessions.get(engine, "bob", "default") is None
    assert await sessions.get(engine, "ada", "blue") is None


async def test_a_plan_belongs_to_its_session_and_the_last_one_counts(writer: Writer, engine: AsyncEngine) -> None:
    await keep(writer, ADAS, BOBS)
    adas, bobs = Session("ada", "default"), Session("bob", "default")

    for plan in ("first", "second"):
        await writer.submit(partial(sessions.save_plan, session=adas, plan=plan))

    assert (await sessions.plan_of(engine, adas), await sessions.plan_of(engine, bobs)) == ("second", None)
    assert await sessions.plan_of(engine, Session("ada", "blue")) is None
