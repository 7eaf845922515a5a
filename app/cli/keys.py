"""Keys for the command line: over REST while the service runs, straight in its records while it does not."""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.cli.offline_store import records
from app.config import Settings
from app.core.principals import PRINCIPAL_NAME, Bounds, Scope, make_key
from app.core.sessions import InvalidSession
from app.core.util.clocks import SystemClock
from app.core.util.ids import Ids
from app.net.service_client import ServiceClient, ServiceProblem
from app.store import principals
from app.store.writer import Writer

View = dict[str, Any]
T = TypeVar("T")


class Keys(Protocol):
    def create(self, principal: str, name: str, scopes: Sequence[Scope], bounds: View) -> View: ...

    def list(self) -> list[View]: ...

    def revoke(self, id: str) -> None: ...


class ServiceKeys:
    """The keys of a running service."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def create(self, principal: str, name: str, scopes: Sequence[Scope], bounds: View) -> View:
        body = {"principal": principal, "name": name, "scopes": [str(scope) for scope in scopes], "bounds": bounds}
        made: View = self._client.request("POST", "/v1/keys", body)
        return made

    def list(self) -> list[View]:
        known: list[View] = self._client.request("GET", "/v1/keys")["data"]
        return known

    def revoke(self, id: str) -> None:
        self._client.request("DELETE", f"/v1/keys/{id}")


class OfflineKeys:
    """The keys of a service that does not run; the lock keeps it from starting meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def create(self, principal: str, name: str, scopes: Sequence[Scope], bounds: View) -> View:
        if not re.fullmatch(PRINCIPAL_NAME, principal):
            raise ServiceProblem("principal: up to 64 letters, digits, dots, dashes, underscores and @ are needed.")
        bound = _read_bounds(bounds, scopes)

        async def work(engine: AsyncEngine, writer: Writer) -> View:
            made, token = make_key(Ids(SystemClock()), principal, name, scopes, bound)
            await writer.submit(lambda batch: principals.add_key(batch, made))
            return made.view() | {"token": token}

        return self._run(work)

    def list(self) -> list[View]:
        async def work(engine: AsyncEngine, writer: Writer) -> list[View]:
            return [key.view() for key in await principals.all_keys(engine)]

        return self._run(work)

    def revoke(self, id: str) -> None:
        async def work(engine: AsyncEngine, writer: Writer) -> bool:
            return await writer.submit(lambda batch: principals.revoke(batch, id, SystemClock().now()))

        if not self._run(work):
            raise ServiceProblem(f"There is no valid key {id}.")

    def _run(self, work: Callable[[AsyncEngine, Writer], Coroutine[Any, Any, T]]) -> T:
        async def inside() -> T:
            async with records(self._settings) as (engine, writer):
                return await work(engine, writer)

        return asyncio.run(inside())


def _read_bounds(given: View, scopes: Sequence[Scope]) -> Bounds:
    """As the service would read them, and with the same sentences when they do not fit."""
    from app.api.key_bounds import BoundsRequest

    try:
        return BoundsRequest.model_validate(given).bounds(os.path.realpath, scopes)
    except ValidationError as error:
        parts = [f"bounds.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise ServiceProblem("; ".join(parts)) from None
    except InvalidSession as error:
        raise ServiceProblem(str(error)) from None
