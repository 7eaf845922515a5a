"""Principals and their keys, kept. Tokens are never kept, only their digests."""

import hmac
import json
from dataclasses import replace

from sqlalchemy import RowMapping, bindparam, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.principals import ADMIN_PRINCIPAL, UNBOUND, Key, Scope, digest, to_bounds
from app.core.util.ids import Ids
from app.store import sessions
from app.store.db import Statement
from app.store.tables import keys, principals
from app.store.writer import Batch, Writer

ADD = Statement(
    "principals.add",
    insert_or_ignore(principals)
    .values({c.name: bindparam(c.name) for c in principals.columns})
    .on_conflict_do_nothing(),
)
ADD_KEY = Statement("keys.add", insert(keys).values({c.name: bindparam(c.name) for c in keys.columns}))
REVOKE = Statement(
    "keys.revoke",
    update(keys)
    .where(keys.c.id == bindparam("b_id"), keys.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("revoked_at")),
)

PREFIX = 16  # of a digest: enough to find the one candidate, the rest is compared in constant time


class Keyring:
    """The valid keys in memory, so that a request is checked without a query."""

    def __init__(self, known: list[Key]) -> None:
        self._by_prefix: dict[str, Key] = {}
        self._ids: set[str] = set()
        for key in known:
            if key.revoked_at is None:
                self.put(key)

    def find(self, token: str) -> Key | None:
        given = digest(token)
        key = self._by_prefix.get(given[:PREFIX])
        return key if key and hmac.compare_digest(key.digest, given) else None

    def holds(self, id: str) -> bool:
        """Whether a key is still valid, for those who showed it a while ago."""
        return id in self._ids

    @property
    def principals(self) -> set[str]:
        """Everybody who has a valid key."""
        return {key.principal for key in self._by_prefix.values()}

    def put(self, key: Key) -> None:
        self._by_prefix[key.digest[:PREFIX]] = key
        self._ids.add(key.id)

    def drop(self, id: str) -> None:
        self._by_prefix = {prefix: key for prefix, key in self._by_prefix.items() if key.id != id}
        self._ids.discard(id)


async def open_keyring(engine: AsyncEngine, writer: Writer, ids: Ids, token: str, *, is_configured: bool) -> Keyring:
    """The stored keys and the admin's, which has this token. Once revoked it stays so."""
    known = await all_keys(engine)
    keyring = Keyring(known)
    if all(key.digest != digest(token) for key in known):
        id, at = ids.new("key")
        key = Key(id, ADMIN_PRINCIPAL, "admin", frozenset({Scope.ADMIN}), digest(token), at)
        await writer.submit(lambda batch: add_key(batch, key))
        keyring.put(key)
    elif is_configured and (found := keyring.find(token)):
        keyring.put(replace(found, scopes=frozenset({Scope.ADMIN})))  # the operator's word, for as long as it is set
    return keyring


def add_key(batch: Batch, key: Key) -> None:
    """Keep a key, and its principal with a default session when they are new."""
    batch.execute(ADD, {"id": key.principal, "created_at": key.created_at})
    sessions.add_default(batch, key.principal, key.created_at)
    batch.execute(
        ADD_KEY,
        {
            "id": key.id,
            "principal": key.principal,
            "name": key.name,
            "scopes": json.dumps(sorted(key.scopes)),
            "digest": key.digest,
            "created_at": key.created_at,
            "revoked_at": key.revoked_at,
            "bounds": None if key.bounds == UNBOUND else json.dumps(key.bounds.view()),
        },
    )


def revoke(batch: Batch, id: str, at: int) -> bool:
    return batch.execute(REVOKE, {"b_id": id, "revoked_at": at}) == 1


async def all_keys(engine: AsyncEngine) -> list[Key]:
    async with engine.connect() as db:
        return [_key(row) for row in (await db.execute(select(keys).order_by(keys.c.id))).mappings()]


def _key(row: RowMapping) -> Key:
    scopes = frozenset(Scope(scope) for scope in json.loads(row["scopes"]))
    bounds = to_bounds(json.loads(row["bounds"])) if row["bounds"] else UNBOUND
    return Key(**{**row, "scopes": scopes, "bounds": bounds})
