"""Secrets for the command line: over REST while the service runs, straight in its records while it does not."""

import asyncio
import getpass
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from app.cli.offline_store import records
from app.config import MAX_SECRET_FILE_BYTES, SecretSetting, Settings, decode_secret
from app.core.principals import ADMIN_PRINCIPAL
from app.core.secrets import GLOBAL_PRINCIPAL, Secret, SecretConfigured, check_name, check_value
from app.core.util.clocks import SystemClock
from app.net.service_client import ServiceClient, ServiceProblem
from app.store import secrets
from app.store.secrets import SecretStore
from app.store.writer import Batch, Writer

View = dict[str, Any]
T = TypeVar("T")


class Secrets(Protocol):
    def put(self, name: str, value: str, domains: Sequence[str], *, is_global: bool) -> View: ...

    def list(self) -> list[View]: ...

    def drop(self, name: str, *, is_global: bool) -> None: ...


def read_value(env: str | None, file: Path | None) -> str:
    """The value from where it was said to be, or from stdin; never from the command line, which others can see."""
    if env is not None or file is not None:
        return SecretSetting(env=env, file=file).read()
    if sys.stdin.isatty():
        return getpass.getpass("Value (not shown): ")
    return decode_secret(sys.stdin.buffer.read(MAX_SECRET_FILE_BYTES))


class ServiceSecrets:
    """The secrets of a running service."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def put(self, name: str, value: str, domains: Sequence[str], *, is_global: bool) -> View:
        check_name(name)
        check_value(value)
        body = {"value": value, "domains": list(domains)}
        kept: View = self._client.request("PUT", f"/v1/secrets/{name}", body, **{"global": is_global})
        return kept

    def list(self) -> list[View]:
        known: list[View] = self._client.request("GET", "/v1/secrets")["data"]
        return known

    def drop(self, name: str, *, is_global: bool) -> None:
        check_name(name)
        self._client.request("DELETE", f"/v1/secrets/{name}", **{"global": is_global})


class OfflineSecrets:
    """The secrets of a service that does not run; the admin's are the own ones.

    Only `put` needs the key file, so that secrets which cannot be opened any more can still be seen and removed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def put(self, name: str, value: str, domains: Sequence[str], *, is_global: bool) -> View:
        self._check(name, is_global)

        async def work(engine: AsyncEngine, writer: Writer) -> View:
            vault = await secrets.open_vault(engine, self._settings.data_dir.absolute())
            stored = await secrets.open_all(engine, vault)
            book = SecretStore(writer, vault, SystemClock(), _Unheard(), stored=stored)
            kept, _ = await book.put(_owner(is_global), name, value, domains)
            return kept.view()

        return self._run(work)

    def list(self) -> list[View]:
        async def work(engine: AsyncEngine, writer: Writer) -> list[Secret]:
            return await secrets.all_stored(engine)

        configured = {name: setting.without_value(name) for name, setting in self._settings.secrets.items()}
        seen = [
            secret
            for secret in self._run(work)
            if secret.principal == ADMIN_PRINCIPAL or (secret.is_global and secret.name not in configured)
        ]
        every = sorted([*seen, *configured.values()], key=lambda secret: (secret.name, secret.is_global))
        return [secret.view() for secret in every]

    def drop(self, name: str, *, is_global: bool) -> None:
        self._check(name, is_global)

        async def work(engine: AsyncEngine, writer: Writer) -> bool:
            return await writer.submit(lambda batch: secrets.remove(batch, _owner(is_global), name))

        if not self._run(work):
            raise ServiceProblem(f"There is no secret {name}.")

    def reset(self) -> int:
        """Forget every stored secret, whoever owns it; the answer is how many there were."""

        async def work(engine: AsyncEngine, writer: Writer) -> int:
            known = await secrets.all_stored(engine)

            def forget(batch: Batch) -> int:
                return sum(secrets.remove(batch, secret.principal, secret.name) for secret in known)

            return await writer.submit(forget)

        return self._run(work)

    def _check(self, name: str, is_global: bool) -> None:
        check_name(name)
        if is_global and name in self._settings.secrets:
            raise SecretConfigured(name)

    def _run(self, work: Callable[[AsyncEngine, Writer], Coroutine[Any, Any, T]]) -> T:
        async def inside() -> T:
            async with records(self._settings) as (engine, writer):
                return await work(engine, writer)

        return asyncio.run(inside())


class _Unheard:
    """A command that ends at once shows nothing that could be redacted."""

    def replace(self, values: Iterable[str]) -> None:
        pass


def _owner(is_global: bool) -> str:
    return GLOBAL_PRINCIPAL if is_global else ADMIN_PRINCIPAL
