"""What MCP servers granted us, kept: tokens and registrations, sealed in the database, open only in memory.

Each row is one server's, at one issuer: what one authorization server gave is
never shown to another. It is also bound to the server's URL: a server of the
same name elsewhere does not get it.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from sqlalchemy import RowMapping, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import SealBroken
from app.core.ports import Clock, Registrar
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.util.json_codec import Raw, dumps
from app.store.db import Statement
from app.store.tables import mcp_tokens
from app.store.vault import Vault
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)

_insert = upsert(mcp_tokens).values({c.name: bindparam(c.name) for c in mcp_tokens.columns})
_servers = (mcp_tokens.c.principal == bindparam("b_principal"), mcp_tokens.c.server == bindparam("b_server"))

PUT = Statement(
    "mcp_tokens.put",
    _insert.on_conflict_do_update(
        index_elements=[mcp_tokens.c.principal, mcp_tokens.c.server, mcp_tokens.c.issuer],
        set_={name: _insert.excluded[name] for name in ("value", "updated_at")},
    ),
)
DROP = Statement("mcp_tokens.drop", delete(mcp_tokens).where(*_servers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one issuer gave us for one server. Without an access token it is only who we are there.

    Times are wall time, because they count over restarts.
    """

    owner: str | None
    server: str
    issuer: str
    url: str
    resource: str
    token_endpoint: str
    client: Raw = field(repr=False)
    scope: str | None = None
    access_token: str | None = field(default=None, repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    granted_at: int = 0
    expires_at: int | None = None

    @property
    def secrets(self) -> frozenset[str]:
        found = (self.access_token, self.refresh_token, self.client.get("client_secret"))
        return frozenset(value for value in found if value)

    def emptied(self, *, registered: bool = True) -> "Grant":
        """Without its tokens, and if it shall be so also without who we are."""
        client = self.client if registered else {}
        return replace(self, client=client, access_token=None, refresh_token=None, expires_at=None)


class TokenStore:
    """All grants in memory. What it shows is committed; what it holds is redacted.

    Of a grant that was replaced the values stay redacted until the next one comes: somebody may still be using them.
    """

    def __init__(
        self, writer: Writer, vault: Vault, clock: Clock, registrar: Registrar, *, stored: Iterable[Grant]
    ) -> None:
        self._writer = writer
        self._vault = vault
        self._clock = clock
        self._registrar = registrar
        self._grants: dict[tuple[str, str], dict[str, Grant]] = {}
        self._former: dict[tuple[str, str, str], frozenset[str]] = {}
        for grant in stored:
            self._put(grant)
        self._register()

    def current(self, owner: str | None, server: str, url: str) -> Grant | None:
        """The newest tokens of a server that is at this address."""
        kept = self._grants.get((_principal(owner), server))
        if kept is None:
            return None
        found = [one for one in kept.values() if one.url == url and one.access_token]
        return max(found, key=lambda one: one.granted_at, default=None)

    def at(self, owner: str | None, server: str, issuer: str) -> Grant | None:
        """What is kept of a server at one issuer."""
        return self._grants.get((_principal(owner), server), {}).get(issuer)

    async def put(self, grant: Grant) -> None:
        """Keep a grant in place of the old one of its server and issuer."""
        sealed = self._vault.seal(_written(grant), _about(*_key(grant)))
        at = self._clock.now()
        change = self._writer.submit(lambda batch: put(batch, grant, sealed, at))
        self._register(grant)  # before anybody can see it
        change.add_done_callback(lambda done: self._show(done, grant))
        # Shielded, because a change that was handed over is committed even if nobody waits for it any more.
        await asyncio.shield(change)

    async def drop(self, owner: str | None, server: str) -> bool:
        """Forget all grants of a server; the answer is whether there were any."""
        change = self._writer.submit(lambda batch: drop(batch, owner, server))
        change.add_done_callback(lambda done: self._hide(done, owner, server))
        return await asyncio.shield(change)

    def _show(self, done: "asyncio.Future[None]", grant: Grant) -> None:
        if not (done.cancelled() or done.exception()):
            if before := self.at(grant.owner, grant.server, grant.issuer):
                self._former[_key(grant)] = before.secrets
            self._put(grant)
        self._register()

    def _hide(self, done: "asyncio.Future[bool]", owner: str | None, server: str) -> None:
        if not (done.cancelled() or done.exception()):
            for grant in self._grants.pop((_principal(owner), server), {}).values():
                self._former[_key(grant)] = grant.secrets

    def _put(self, grant: Grant) -> None:
        self._grants.setdefault((_principal(grant.owner), grant.server), {})[grant.issuer] = grant

    def _register(self, *more: Grant) -> None:
        held = [grant for kept in self._grants.values() for grant in kept.values()]
        values = [grant.secrets for grant in (*held, *more)]
        self._registrar.replace(frozenset[str]().union(*values, *self._former.values()))


def put(batch: Batch, grant: Grant, sealed: bytes, at: int) -> None:
    principal, server, issuer = _key(grant)
    row = {"principal": principal, "server": server, "issuer": issuer, "value": sealed, "updated_at": at}
    batch.execute(PUT, row)


def drop(batch: Batch, owner: str | None, server: str) -> bool:
    return batch.execute(DROP, {"b_principal": _principal(owner), "b_server": server}) > 0


async def open_all(engine: AsyncEngine, vault: Vault) -> list[Grant]:
    """Every grant that can be opened. One that cannot be is no reason not to start: people sign in again."""
    async with engine.connect() as db:
        rows = list((await db.execute(select(mcp_tokens))).mappings())
    return [grant for row in rows if (grant := _open(row, vault)) is not None]


def _open(row: RowMapping, vault: Vault) -> Grant | None:
    try:
        opened = vault.open(row["value"], _about(row["principal"], row["server"], row["issuer"]))
        return Grant(
            owner=None if row["principal"] == GLOBAL_PRINCIPAL else row["principal"],
            server=row["server"],
            issuer=row["issuer"],
            **json.loads(opened),
        )
    except (SealBroken, ValueError, TypeError):
        log.warning("the tokens for MCP server %s cannot be opened; it has to be signed in to again", row["server"])
        return None


def _written(grant: Grant) -> bytes:
    facts = asdict(grant)
    return dumps({name: value for name, value in facts.items() if name not in ("owner", "server", "issuer")})


def _about(principal: str, server: str, issuer: str) -> str:
    """What a row is sealed as: none of its keys can be changed without it."""
    return f"mcp_tokens/{principal}/{server}/{issuer}"


def _key(grant: Grant) -> tuple[str, str, str]:
    return _principal(grant.owner), grant.server, grant.issuer


def _principal(owner: str | None) -> str:
    return GLOBAL_PRINCIPAL if owner is None else owner
