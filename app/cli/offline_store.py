"""Keys and secrets in the database of a stopped service; the lock prevents a start meanwhile.

The secrets without `is_global` are those of the admin. Only `put_secret` needs the
key file, so that secrets which cannot be decrypted can still be listed and removed.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.config import Settings
from app.core.principals import ADMIN_PRINCIPAL, PRINCIPAL_NAME, Bounds, Scope, make_key
from app.core.secrets import GLOBAL_PRINCIPAL, Secret, SecretConfigured, check_name
from app.core.sessions import InvalidSession
from app.core.util.clocks import SystemClock
from app.core.util.ids import Ids
from app.net.service_client import ServiceProblem
from app.store import db, migrate, principals, secrets
from app.store.lock import DataDirLock
from app.store.secrets import SecretStore
from app.store.writer import Batch, Writer

View = dict[str, Any]
T = TypeVar("T")


def create_key(settings: Settings, principal: str, name: str, scopes: Sequence[Scope], bounds: View) -> View:
    if not re.fullmatch(PRINCIPAL_NAME, principal):
        raise ServiceProblem(f"principal: it must match {PRINCIPAL_NAME}.")
    key, token = make_key(Ids(SystemClock()), principal, name, scopes, _read_bounds(bounds, scopes))
    _write(settings, lambda batch: principals.add_key(batch, key))
    return key.view() | {"token": token}


def list_keys(settings: Settings) -> list[View]:
    return [key.view() for key in _run(settings, lambda engine, writer: principals.all_keys(engine))]


def revoke_key(settings: Settings, id: str) -> None:
    if not _write(settings, lambda batch: principals.revoke(batch, id, SystemClock().now())):
        raise ServiceProblem(f"There is no valid key {id}.")


def put_secret(settings: Settings, name: str, value: str, domains: Sequence[str], *, is_global: bool) -> None:
    _check_secret(settings, name, is_global)

    async def put(engine: AsyncEngine, writer: Writer) -> None:
        vault = await secrets.open_vault(engine, settings.data_dir.absolute())
        stored = await secrets.open_all(engine, vault)
        store = SecretStore(writer, vault, SystemClock(), _NoRedaction(), stored=stored)
        await store.put(_owner(is_global), name, value, domains)

    _run(settings, put)


def list_secrets(settings: Settings) -> list[View]:
    configured = {name: setting.without_value(name) for name, setting in settings.secrets.items()}

    def is_visible(secret: Secret) -> bool:
        return secret.principal == ADMIN_PRINCIPAL or (secret.is_global and secret.name not in configured)

    stored = filter(is_visible, _run(settings, lambda engine, writer: secrets.all_stored(engine)))
    every = sorted([*stored, *configured.values()], key=lambda secret: (secret.name, secret.is_global))
    return [secret.view() for secret in every]


def remove_secret(settings: Settings, name: str, *, is_global: bool) -> None:
    _check_secret(settings, name, is_global)
    if not _write(settings, lambda batch: secrets.remove(batch, _owner(is_global), name)):
        raise ServiceProblem(f"There is no secret {name}.")


def reset_secrets(settings: Settings) -> int:
    """Delete every stored secret of every owner; returns their number."""

    async def reset(engine: AsyncEngine, writer: Writer) -> int:
        stored = await secrets.all_stored(engine)
        return await writer.submit(lambda batch: sum(secrets.remove(batch, one.principal, one.name) for one in stored))

    return _run(settings, reset)


def _check_secret(settings: Settings, name: str, is_global: bool) -> None:
    check_name(name)
    if is_global and name in settings.secrets:
        raise SecretConfigured(name)


def _owner(is_global: bool) -> str:
    return GLOBAL_PRINCIPAL if is_global else ADMIN_PRINCIPAL


class _NoRedaction:
    """A `Registrar` for a command that prints no value."""

    def replace(self, values: Iterable[str]) -> None:
        pass


def _read_bounds(view: View, scopes: Sequence[Scope]) -> Bounds:
    """Validate bounds like the service, with the same messages."""
    from app.api.key_bounds import BoundsRequest

    try:
        return BoundsRequest.model_validate(view).bounds(os.path.realpath, scopes)
    except ValidationError as error:
        parts = [f"bounds.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise ServiceProblem("; ".join(parts)) from None
    except InvalidSession as error:
        raise ServiceProblem(str(error)) from None


def _write(settings: Settings, change: Callable[[Batch], T]) -> T:
    return _run(settings, lambda engine, writer: writer.submit(change))


def _run(settings: Settings, work: Callable[[AsyncEngine, Writer], Awaitable[T]]) -> T:
    async def run() -> T:
        data_dir = settings.data_dir.absolute()
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = DataDirLock(data_dir)
        url = db.database_url(data_dir, settings.database_url)
        await asyncio.to_thread(migrate.upgrade, url)
        engine, writer = db.open_readers(url), Writer(url, lambda events: None)
        try:
            return await work(engine, writer)
        finally:
            await writer.close()
            await engine.dispose()
            lock.release()

    return asyncio.run(run())
