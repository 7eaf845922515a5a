"""The tables of MCP servers: definitions added at run time, the tools they listed last, and OAuth grants.

Grants are encrypted in the database and decrypted only in memory. Each row belongs
to one server and one authorization server: what one authorization server issued is
never sent to another. A grant is also bound to the server's URL: a server of the
same name with another URL does not get it.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from sqlalchemy import ColumnElement, RowMapping, Table, bindparam, delete, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import SealBroken
from app.core.ports import Clock, Registrar
from app.core.secrets import GLOBAL_PRINCIPAL, owner_of
from app.core.util.json_codec import Raw, dumps
from app.store.tables import mcp_catalogues, mcp_servers, mcp_tokens
from app.store.vault import Vault
from app.store.writer import Batch, Statement, Writer, put_statement

log = logging.getLogger(__name__)


def _of_server(table: Table, name: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.principal == bindparam("b_principal"), table.c[name] == bindparam("b_server")


PUT_SERVER = put_statement("mcp_servers.put", mcp_servers, "definition", "updated_at")
REMOVE_SERVER = Statement("mcp_servers.remove", delete(mcp_servers).where(*_of_server(mcp_servers, "name")))
PUT_CATALOG = put_statement("mcp_catalogues.put", mcp_catalogues, "body", "updated_at")
REMOVE_CATALOG = Statement("mcp_catalogues.remove", delete(mcp_catalogues).where(*_of_server(mcp_catalogues, "server")))
PUT_GRANT = put_statement("mcp_tokens.put", mcp_tokens, "value", "updated_at")
REMOVE_GRANTS = Statement("mcp_tokens.remove", delete(mcp_tokens).where(*_of_server(mcp_tokens, "server")))

Catalogs = Mapping[tuple[str | None, str], str]
"""What servers listed, as JSON, by owner (None: all principals) and name."""


@dataclass(frozen=True, slots=True)
class StoredServer:
    """A definition as JSON text, and the principal it belongs to (None: all)."""

    owner: str | None
    name: str
    definition: str


def put_server(batch: Batch, server: StoredServer, at: int) -> None:
    """Store a server, replacing the owner's server of this name."""
    row = {"principal": server.owner or GLOBAL_PRINCIPAL, "name": server.name, "definition": server.definition}
    batch.execute(PUT_SERVER, row | {"created_at": at, "updated_at": at})


def remove_server(batch: Batch, name: str, owner: str | None) -> bool:
    return batch.execute(REMOVE_SERVER, {"b_principal": owner or GLOBAL_PRINCIPAL, "b_server": name}) == 1


async def load_servers(engine: AsyncEngine) -> list[StoredServer]:
    async with engine.connect() as db:
        rows = (await db.execute(select(mcp_servers).order_by(mcp_servers.c.principal, mcp_servers.c.name))).mappings()
        return [StoredServer(owner_of(row["principal"]), row["name"], row["definition"]) for row in rows]


def put_catalog(batch: Batch, server: str, owner: str | None, body: str, at: int) -> None:
    """Store what a server listed, so that its tools are known before it is connected."""
    row = {"principal": owner or GLOBAL_PRINCIPAL, "server": server, "body": body, "updated_at": at}
    batch.execute(PUT_CATALOG, row)


def remove_catalog(batch: Batch, server: str, owner: str | None) -> bool:
    return batch.execute(REMOVE_CATALOG, {"b_principal": owner or GLOBAL_PRINCIPAL, "b_server": server}) == 1


async def load_catalogs(engine: AsyncEngine) -> Catalogs:
    async with engine.connect() as db:
        rows = (await db.execute(select(mcp_catalogues))).mappings()
        return {(owner_of(row["principal"]), row["server"]): row["body"] for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one authorization server issued for one MCP server; without an access token only the client registration.

    Times are wall-clock times, because they must hold across restarts.
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
        values = (self.access_token, self.refresh_token, self.client.get("client_secret"))
        return frozenset(value for value in values if value)

    def without_tokens(self, *, keep_client: bool = True) -> "Grant":
        """The grant without its tokens, and optionally without the client registration."""
        client = self.client if keep_client else {}
        return replace(self, client=client, access_token=None, refresh_token=None, expires_at=None)


class TokenStore:
    """All grants in memory. It shows only committed grants, and has all their values redacted.

    The values of a replaced grant stay redacted until the next one replaces it: a request may still use them.
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
        """The newest grant with an access token for a server at this URL."""
        grants = self._grants.get((owner or GLOBAL_PRINCIPAL, server), {}).values()
        usable = [grant for grant in grants if grant.url == url and grant.access_token]
        return max(usable, key=lambda grant: grant.granted_at, default=None)

    def find(self, owner: str | None, server: str, issuer: str) -> Grant | None:
        """The grant of one authorization server."""
        return self._grants.get((owner or GLOBAL_PRINCIPAL, server), {}).get(issuer)

    async def put(self, grant: Grant) -> None:
        """Store a grant, replacing the old one of its server and issuer."""
        principal, server, issuer = _key(grant)
        fields = {name: value for name, value in asdict(grant).items() if name not in ("owner", "server", "issuer")}
        sealed = self._vault.seal(dumps(fields), _label(principal, server, issuer))
        key = {"principal": principal, "server": server, "issuer": issuer}
        row = {**key, "value": sealed, "updated_at": self._clock.now()}
        change = self._writer.submit(lambda batch: batch.execute(PUT_GRANT, row))
        self._register(grant)  # before any request can use it
        change.add_done_callback(lambda done: self._on_stored(done, grant))
        # Shielded, because a submitted change is committed even if the waiting task is canceled.
        await asyncio.shield(change)

    async def remove(self, owner: str | None, server: str) -> bool:
        """Delete all grants of a server; False when there were none."""
        key = {"b_principal": owner or GLOBAL_PRINCIPAL, "b_server": server}

        def forget(_: bool) -> None:
            for grant in self._grants.pop((owner or GLOBAL_PRINCIPAL, server), {}).values():
                self._former[_key(grant)] = grant.secrets

        return await self._writer.commit_and_apply(lambda batch: batch.execute(REMOVE_GRANTS, key) > 0, forget)

    def _on_stored(self, done: "asyncio.Future[int]", grant: Grant) -> None:
        if not (done.cancelled() or done.exception()):
            if before := self.find(grant.owner, grant.server, grant.issuer):
                self._former[_key(grant)] = before.secrets
            self._put(grant)
        self._register()

    def _put(self, grant: Grant) -> None:
        self._grants.setdefault((grant.owner or GLOBAL_PRINCIPAL, grant.server), {})[grant.issuer] = grant

    def _register(self, *new: Grant) -> None:
        grants = [grant for by_issuer in self._grants.values() for grant in by_issuer.values()]
        values = [grant.secrets for grant in (*grants, *new)]
        self._registrar.replace(frozenset[str]().union(*values, *self._former.values()))


async def load_grants(engine: AsyncEngine, vault: Vault) -> list[Grant]:
    """Every grant that can be decrypted. For others the service starts anyway: users authorize again."""
    async with engine.connect() as db:
        rows = list((await db.execute(select(mcp_tokens))).mappings())
    return [grant for row in rows if (grant := _decrypt(row, vault)) is not None]


def _decrypt(row: RowMapping, vault: Vault) -> Grant | None:
    server, issuer = row["server"], row["issuer"]
    try:
        data = vault.open(row["value"], _label(row["principal"], server, issuer))
        return Grant(owner=owner_of(row["principal"]), server=server, issuer=issuer, **json.loads(data))
    except (SealBroken, ValueError, TypeError):
        log.warning("the tokens for MCP server %s cannot be decrypted; it must be authorized again", server)
        return None


def _label(principal: str, server: str, issuer: str) -> str:
    """Associated data of the encryption: none of the row's keys can be changed without detection."""
    return f"mcp_tokens/{principal}/{server}/{issuer}"


def _key(grant: Grant) -> tuple[str, str, str]:
    return grant.owner or GLOBAL_PRINCIPAL, grant.server, grant.issuer
