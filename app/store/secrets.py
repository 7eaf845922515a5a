"""Secrets, kept: sealed in the database, open only in the memory of the running service."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import RowMapping, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.errors import SealBroken, VaultLocked
from app.core.ports import Clock, Registrar
from app.core.secrets import (
    GLOBAL_PRINCIPAL,
    InvalidSecret,
    Secret,
    SecretConfigured,
    check_name,
    check_value,
    read_domains,
)
from app.store import vault
from app.store.db import Statement
from app.store.tables import secrets
from app.store.vault import Vault
from app.store.writer import Batch, Writer

Held = tuple[Secret, str]
"""A secret with its value."""

MAX_OWNED = 1_000  # each value is looked for in all that is written down
GIVE_UP = "If it is lost, give the stored secrets up with `toolcrib secret reset`."

_insert = upsert(secrets).values({c.name: bindparam(c.name) for c in secrets.columns})
_mine = (secrets.c.principal == bindparam("b_principal"), secrets.c.name == bindparam("b_name"))

PUT = Statement(
    "secrets.put",
    _insert.on_conflict_do_update(
        index_elements=[secrets.c.principal, secrets.c.name],
        set_={name: _insert.excluded[name] for name in ("value", "domains", "updated_at")},
    ),
)
CREATED = Statement("secrets.created", select(secrets.c.created_at).where(*_mine))
DROP = Statement("secrets.drop", delete(secrets).where(*_mine))


class SecretStore:
    """All secrets in memory, as the Keyring holds keys. What it shows is committed; what it holds is redacted."""

    def __init__(
        self,
        writer: Writer,
        vault: Vault,
        clock: Clock,
        registrar: Registrar,
        *,
        stored: Iterable[Held],
        configured: Iterable[Held] = (),
    ) -> None:
        self._writer = writer
        self._vault = vault
        self._clock = clock
        self._registrar = registrar
        self._stored = {(held[0].principal, held[0].name): held for held in stored}
        self._configured = {held[0].name: held for held in configured}
        registrar.replace(self.values())

    def find(self, principal: str, name: str) -> Held | None:
        """The principal's own secret of this name, or else everybody's; the configured one before a stored one."""
        own = self._stored.get((principal, name)) if principal != GLOBAL_PRINCIPAL else None
        return own or self._configured.get(name) or self._stored.get((GLOBAL_PRINCIPAL, name))

    def value(self, principal: str, name: str) -> str | None:
        """Only the value of what `find` finds."""
        found = self.find(principal, name)
        return None if found is None else found[1]

    def sendable(self, principal: str, name: str) -> tuple[tuple[str, ...], str] | None:
        """All that the wire out has to know of a secret: the domains it may go to, and its value."""
        found = self.find(principal, name)
        return None if found is None else (found[0].domains, found[1])

    def listed(self, principal: str | None) -> list[Secret]:
        """Everybody's secrets and the principal's own, by name; None has no own ones."""
        everybodys = {name: secret for (owner, name), (secret, _) in self._stored.items() if owner == GLOBAL_PRINCIPAL}
        everybodys |= {name: secret for name, (secret, _) in self._configured.items()}
        own = [secret for (owner, _), (secret, _) in self._stored.items() if owner == principal != GLOBAL_PRINCIPAL]
        return sorted([*own, *everybodys.values()], key=lambda secret: (secret.name, secret.is_global))

    def values(self) -> frozenset[str]:
        """Every value it holds, whoever owns it."""
        return _values(self._stored, self._configured)

    async def put(self, principal: str, name: str, value: str, domains: Iterable[str]) -> tuple[Secret, bool]:
        """Keep a secret, new or in place of the old one; the answer says whether it is new."""
        self._check(principal, name)
        check_name(name)
        check_value(value)
        at = self._clock.now()
        secret = Secret(principal, name, read_domains(domains), at, at)
        if (principal, name) not in self._stored and self._owned(principal) >= MAX_OWNED:
            raise InvalidSecret(f"No more than {MAX_OWNED:,} secrets are kept for one owner; remove one first.")
        sealed = self._vault.seal(value.encode(), _about(secret))
        change = self._writer.submit(lambda batch: put(batch, secret, sealed))
        change.add_done_callback(lambda done: self._show(done, value))
        # Shielded, because a change that was handed over is committed even if nobody waits for it any more.
        kept = await asyncio.shield(change)
        return kept, kept is secret

    async def drop(self, principal: str, name: str) -> bool:
        """Forget a secret; the answer is whether it was there."""
        self._check(principal, name)
        change = self._writer.submit(lambda batch: drop(batch, principal, name))
        change.add_done_callback(lambda done: self._hide(done, principal, name))
        return await asyncio.shield(change)

    def _check(self, principal: str, name: str) -> None:
        if principal == GLOBAL_PRINCIPAL and name in self._configured:
            raise SecretConfigured(name)

    def _owned(self, principal: str) -> int:
        return sum(owner == principal for owner, _ in self._stored)

    def _show(self, done: "asyncio.Future[Secret]", value: str) -> None:
        """Futures are resolved in the order of their commits, so the book changes in that order too."""
        if not (done.cancelled() or done.exception()):
            secret = done.result()
            self._become(self._stored | {(secret.principal, secret.name): (secret, value)})

    def _hide(self, done: "asyncio.Future[bool]", principal: str, name: str) -> None:
        if not (done.cancelled() or done.exception()):
            self._become({key: held for key, held in self._stored.items() if key != (principal, name)})

    def _become(self, stored: dict[tuple[str, str], Held]) -> None:
        """The registrar hears first, so that nothing can be found which is not redacted."""
        self._registrar.replace(_values(stored, self._configured))
        self._stored = stored


def _values(*held: Mapping[Any, Held]) -> frozenset[str]:
    return frozenset(value for book in held for _, value in book.values())


def put(batch: Batch, secret: Secret, sealed: bytes) -> Secret:
    """Keep a sealed secret; what is answered has the time the first of its name was made."""
    was = batch.fetch(CREATED, _key(secret.principal, secret.name))
    batch.execute(
        PUT,
        {
            "principal": secret.principal,
            "name": secret.name,
            "value": sealed,
            "domains": json.dumps(secret.domains),
            "created_at": secret.created_at,
            "updated_at": secret.updated_at,
        },
    )
    if was is None:
        return secret
    return Secret(secret.principal, secret.name, secret.domains, was[0], secret.updated_at)


def drop(batch: Batch, principal: str, name: str) -> bool:
    return batch.execute(DROP, _key(principal, name)) == 1


async def all_stored(engine: AsyncEngine) -> list[Secret]:
    """Every secret without its value, which stays sealed."""
    return [_secret(row) for row in await _rows(engine)]


async def open_all(engine: AsyncEngine, vault: Vault) -> list[Held]:
    """Every stored secret with its value."""
    return [_open(row, vault) for row in await _rows(engine)]


async def open_vault(engine: AsyncEngine, data_dir: Path) -> Vault:
    """The vault of a data directory. A key is made only where nothing is sealed with a lost one."""
    if found := vault.read(data_dir):
        return found
    async with engine.connect() as db:
        is_needed = await db.scalar(select(secrets.c.name).limit(1)) is not None
    if is_needed:
        raise VaultLocked(
            f"The key file {data_dir / vault.FILE_NAME} is missing, and there are secrets sealed with it. "
            f"Put it back from a backup. {GIVE_UP}"
        )
    return vault.make(data_dir)


async def _rows(engine: AsyncEngine) -> list[RowMapping]:
    async with engine.connect() as db:
        query = select(secrets).order_by(secrets.c.principal, secrets.c.name)
        return list((await db.execute(query)).mappings())


def _open(row: RowMapping, vault: Vault) -> Held:
    secret = _secret(row)
    try:
        return secret, vault.open(row["value"], _about(secret)).decode()
    except SealBroken:
        raise SealBroken(
            f"The secret {secret.name} of {secret.principal} cannot be opened: its record was changed, or secrets.key "
            f"is not the key it was sealed with. Put the right file back from a backup. {GIVE_UP}"
        ) from None


def _secret(row: RowMapping) -> Secret:
    domains = tuple(json.loads(row["domains"]))
    return Secret(row["principal"], row["name"], domains, row["created_at"], row["updated_at"])


def _about(secret: Secret) -> str:
    """What a value is sealed as: its owner, its name, and where it may go. None of them can be changed without it."""
    return f"secrets/{secret.principal}/{secret.name}/{','.join(secret.domains)}"


def _key(principal: str, name: str) -> dict[str, str]:
    return {"b_principal": principal, "b_name": name}
