"""The secrets table: values encrypted in the database, decrypted only in the memory of the running service."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import RowMapping, bindparam, delete, select
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
from app.store.tables import secrets
from app.store.vault import Vault
from app.store.writer import Batch, Statement, Writer, put_statement, row_of

Held = tuple[Secret, str]
"""A secret with its value."""

MAX_PER_OWNER = 1_000  # redaction searches every text for every value
RESET_HINT = "If it is lost, delete the stored secrets with `toolcrib secret reset`."

_is_key = (secrets.c.principal == bindparam("b_principal"), secrets.c.name == bindparam("b_name"))

PUT = put_statement("secrets.put", secrets, "value", "domains", "updated_at")
CREATED = Statement("secrets.created", select(secrets.c.created_at).where(*_is_key))
REMOVE = Statement("secrets.remove", delete(secrets).where(*_is_key))


class SecretStore:
    """All secrets in memory. It shows only committed secrets, and has all their values redacted."""

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
        """The principal's own secret of this name, or the global one; a configured one wins over a stored one."""
        own = self._stored.get((principal, name)) if principal != GLOBAL_PRINCIPAL else None
        return own or self._configured.get(name) or self._stored.get((GLOBAL_PRINCIPAL, name))

    def value(self, principal: str, name: str) -> str | None:
        """The value of the secret that `find` returns."""
        found = self.find(principal, name)
        return None if found is None else found[1]

    def sendable(self, principal: str, name: str) -> tuple[tuple[str, ...], str] | None:
        """The domains a secret may be sent to, and its value."""
        found = self.find(principal, name)
        return None if found is None else (found[0].domains, found[1])

    def listed(self, principal: str | None) -> list[Secret]:
        """The global secrets and those of the principal, by name."""
        shared = {name: secret for (owner, name), (secret, _) in self._stored.items() if owner == GLOBAL_PRINCIPAL}
        shared |= {name: secret for name, (secret, _) in self._configured.items()}
        own = [secret for (owner, _), (secret, _) in self._stored.items() if owner == principal != GLOBAL_PRINCIPAL]
        return sorted([*own, *shared.values()], key=lambda secret: (secret.name, secret.is_global))

    def values(self) -> frozenset[str]:
        """All values, of all owners."""
        return _values(self._stored, self._configured)

    async def put(self, principal: str, name: str, value: str, domains: Iterable[str]) -> tuple[Secret, bool]:
        """Store a secret, replacing the owner's secret of this name; the second value is whether it is new."""
        self._check(principal, name)
        check_name(name)
        check_value(value)
        at = self._clock.now()
        secret = Secret(principal, name, read_domains(domains), at, at)
        count = sum(owner == principal for owner, _ in self._stored)
        if (principal, name) not in self._stored and count >= MAX_PER_OWNER:
            raise InvalidSecret(f"An owner can have at most {MAX_PER_OWNER:,} secrets; remove one first.")
        sealed = self._vault.seal(value.encode(), _label(secret))
        stored = await self._writer.commit_and_apply(
            lambda batch: put(batch, secret, sealed),
            lambda new: self._replace(self._stored | {(new.principal, new.name): (new, value)}),
        )
        return stored, stored is secret

    async def remove(self, principal: str, name: str) -> bool:
        """Delete a secret; False when there was none."""
        self._check(principal, name)
        return await self._writer.commit_and_apply(
            lambda batch: remove(batch, principal, name),
            lambda _: self._replace({key: held for key, held in self._stored.items() if key != (principal, name)}),
        )

    def _check(self, principal: str, name: str) -> None:
        if principal == GLOBAL_PRINCIPAL and name in self._configured:
            raise SecretConfigured(name)

    def _replace(self, stored: dict[tuple[str, str], Held]) -> None:
        """The registrar comes first, so that no value can be found that is not redacted."""
        self._registrar.replace(_values(stored, self._configured))
        self._stored = stored


def _values(*held: Mapping[Any, Held]) -> frozenset[str]:
    return frozenset(value for secrets in held for _, value in secrets.values())


def put(batch: Batch, secret: Secret, sealed: bytes) -> Secret:
    """Store an encrypted secret; the returned one has the time at which the first of its name was created."""
    was = batch.fetch(CREATED, _key(secret.principal, secret.name))
    batch.execute(PUT, row_of(secret, secrets, value=sealed, domains=json.dumps(secret.domains)))
    if was is None:
        return secret
    return Secret(secret.principal, secret.name, secret.domains, was[0], secret.updated_at)


def remove(batch: Batch, principal: str, name: str) -> bool:
    return batch.execute(REMOVE, _key(principal, name)) == 1


async def all_stored(engine: AsyncEngine) -> list[Secret]:
    """Every secret without its value, which is not decrypted."""
    return [_secret(row) for row in await _rows(engine)]


async def open_all(engine: AsyncEngine, vault: Vault) -> list[Held]:
    """Every stored secret with its value."""
    return [_decrypt(row, vault) for row in await _rows(engine)]


async def open_vault(engine: AsyncEngine, data_dir: Path) -> Vault:
    """The vault of a data directory. A new key is generated only if no secret is encrypted with a lost one."""
    if found := vault.read(data_dir):
        return found
    async with engine.connect() as db:
        is_needed = await db.scalar(select(secrets.c.name).limit(1)) is not None
    if is_needed:
        raise VaultLocked(
            f"The key file {data_dir / vault.FILE_NAME} is missing, and stored secrets are encrypted with it. "
            f"Restore it from a backup. {RESET_HINT}"
        )
    return vault.create(data_dir)


async def _rows(engine: AsyncEngine) -> list[RowMapping]:
    async with engine.connect() as db:
        query = select(secrets).order_by(secrets.c.principal, secrets.c.name)
        return list((await db.execute(query)).mappings())


def _decrypt(row: RowMapping, vault: Vault) -> Held:
    secret = _secret(row)
    try:
        return secret, vault.open(row["value"], _label(secret)).decode()
    except SealBroken:
        raise SealBroken(
            f"The secret {secret.name} of {secret.principal} cannot be decrypted: its record was changed, or "
            f"secrets.key is not the key it was encrypted with. Restore the right file from a backup. {RESET_HINT}"
        ) from None


def _secret(row: RowMapping) -> Secret:
    domains = tuple(json.loads(row["domains"]))
    return Secret(row["principal"], row["name"], domains, row["created_at"], row["updated_at"])


def _label(secret: Secret) -> str:
    """Associated data of the encryption: owner, name and domains cannot be changed without detection."""
    return f"secrets/{secret.principal}/{secret.name}/{','.join(secret.domains)}"


def _key(principal: str, name: str) -> dict[str, str]:
    return {"b_principal": principal, "b_name": name}
