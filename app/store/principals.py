"""The tables of principals and keys. Tokens are never stored, only their digests."""

import hmac
import json
from dataclasses import replace

from sqlalchemy import RowMapping, bindparam, insert, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.principals import ADMIN_PRINCIPAL, UNBOUND, Key, Scope, digest, to_bounds
from app.core.util.ids import Ids
from app.store import sessions
from app.store.tables import keys, principals
from app.store.writer import Batch, Statement, Writer, parameters, row_of

ADD = Statement("principals.add", insert_or_ignore(principals).values(parameters(principals)).on_conflict_do_nothing())
ADD_KEY = Statement("keys.add", insert(keys).values(parameters(keys)))
REVOKE = Statement(
    "keys.revoke",
    update(keys)
    .where(keys.c.id == bindparam("b_id"), keys.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("revoked_at")),
)

PREFIX_LENGTH = 16  # of a digest: enough to find the only candidate; the rest is compared in constant time


class Keyring:
    """The valid keys in memory, so that a request is checked without a query."""

    def __init__(self, known: list[Key]) -> None:
        self._by_prefix: dict[str, Key] = {}
        self._ids: set[str] = set()
        for key in known:
            if key.revoked_at is None:
                self.put(key)

    def find(self, token: str) -> Key | None:
        wanted = digest(token)
        key = self._by_prefix.get(wanted[:PREFIX_LENGTH])
        return key if key and hmac.compare_digest(key.digest, wanted) else None

    def has(self, id: str) -> bool:
        """Whether a key is still valid."""
        return id in self._ids

    @property
    def principals(self) -> set[str]:
        """The principals with a valid key."""
        return {key.principal for key in self._by_prefix.values()}

    def put(self, key: Key) -> None:
        self._by_prefix[key.digest[:PREFIX_LENGTH]] = key
        self._ids.add(key.id)

    def remove(self, id: str) -> None:
        self._by_prefix = {prefix: key for prefix, key in self._by_prefix.items() if key.id != id}
        self._ids.discard(id)


async def open_keyring(engine: AsyncEngine, writer: Writer, ids: Ids, token: str, *, is_configured: bool) -> Keyring:
    """The stored keys and the admin key with this token. A revoked admin key stays revoked."""
    known = await all_keys(engine)
    keyring = Keyring(known)
    if all(key.digest != digest(token) for key in known):
        id, at = ids.new("key")
        key = Key(id, ADMIN_PRINCIPAL, "admin", frozenset({Scope.ADMIN}), digest(token), at)
        await writer.submit(lambda batch: add_key(batch, key))
        keyring.put(key)
    elif is_configured and (found := keyring.find(token)):
        keyring.put(replace(found, scopes=frozenset({Scope.ADMIN})))  # as long as the operator configures it
    return keyring


def add_key(batch: Batch, key: Key) -> None:
    """Store a key, and its principal with a default session if they are new."""
    batch.execute(ADD, {"id": key.principal, "created_at": key.created_at})
    sessions.add_default(batch, key.principal, key.created_at)
    bounds = None if key.bounds == UNBOUND else json.dumps(key.bounds.view())
    batch.execute(ADD_KEY, row_of(key, keys, scopes=json.dumps(sorted(key.scopes)), bounds=bounds))


def revoke(batch: Batch, id: str, at: int) -> bool:
    return batch.execute(REVOKE, {"b_id": id, "revoked_at": at}) == 1


async def all_keys(engine: AsyncEngine) -> list[Key]:
    async with engine.connect() as db:
        return [_to_key(row) for row in (await db.execute(select(keys).order_by(keys.c.id))).mappings()]


def _to_key(row: RowMapping) -> Key:
    scopes = frozenset(Scope(scope) for scope in json.loads(row["scopes"]))
    bounds = to_bounds(json.loads(row["bounds"])) if row["bounds"] else UNBOUND
    return Key(**{**row, "scopes": scopes, "bounds": bounds})
