"""A desk for sign-ins with its records, which can be closed and opened again on the same data."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from app.core.errors import ToolUnavailable
from app.core.mcp_servers import HttpServer
from app.core.redaction import Redactor
from app.core.util.clocks import SystemClock
from app.mcp.client.oauth.http import OAuthHttp
from app.mcp.client.oauth.manager import OAuthManager, SignInUrl
from app.mcp.client.oauth.registration import RedirectTarget
from app.mcp.client.oauth.tokens import TokenClient
from app.net.resolver import Resolver
from app.store import db, secrets
from app.store.mcp import TokenStore, load_grants
from app.store.writer import Writer

HANG = 10.0
HOME = RedirectTarget("http://127.0.0.1:8700/oauth/callback", None)
SECRETS = {("admin", "ID_SECRET"): "the-secret-of-everybody", ("alice", "ID_SECRET"): "the-secret-of-alice"}


class ToyClock(SystemClock):
    """The real time, and what a test adds to it."""

    added = 0.0

    def now(self) -> int:
        return super().now() + int(self.added * 1_000_000)

    def monotonic(self) -> float:
        return super().monotonic() + self.added


@dataclass
class Signing:
    """A desk with its records, which can be closed and opened again on the same data."""

    data_dir: Path
    clock: ToyClock = field(default_factory=ToyClock)
    redactor: Redactor = field(default_factory=Redactor)
    opened: tuple[str, ...] = ("127.0.0.0/8",)
    home: RedirectTarget = HOME
    reconnected: list[tuple[str, str | None]] = field(default_factory=list)

    async def open(self) -> "Signing":
        url = db.database_url(self.data_dir, None)
        self.engine = db.open_readers(url)
        self.writer = Writer(url, lambda told: None)
        vault = await secrets.open_vault(self.engine, self.data_dir)
        stored = await load_grants(self.engine, vault)
        part = self.redactor.part("tokens")
        self.book = TokenStore(self.writer, vault, self.clock, part, stored=stored)
        cashier = TokenClient(self.book, OAuthHttp(Resolver(self.opened).find), self.clock, _secret)
        self.desk = OAuthManager(self.book, cashier, self.clock, redirect=lambda: self.home, reconnect=self._reconnect)
        return self

    async def close(self) -> None:
        await self.desk.close()
        await self.writer.close()
        await self.engine.dispose()

    async def sign_in(self, server: HttpServer, owner: str | None = None) -> None:
        """All a person does."""
        await self.complete(await visit(await self.begin(server, owner)))

    async def begin(self, server: HttpServer, owner: str | None = None) -> SignInUrl:
        door = await self.desk.start(server, owner, "admin")
        assert door is not None
        return door

    async def complete(self, brought: dict[str, str], **other: Any) -> None:
        given = {name: brought.get(name) for name in ("code", "iss", "error")} | other
        await self.desk.complete(brought["state"], given["code"], given["iss"], given["error"])

    async def token(self, server: HttpServer, owner: str | None = None) -> str | None:
        async with asyncio.timeout(HANG):
            return (await self.desk.headers(server, owner)).get("Authorization")

    async def _reconnect(self, name: str, owner: str | None) -> None:
        self.reconnected.append((name, owner))


def _secret(owner: str, name: str, host: str) -> str:
    try:
        return SECRETS[owner, name]
    except KeyError:
        raise ToolUnavailable(f"The secret {name} is not set.") from None


async def visit(door: SignInUrl) -> dict[str, str]:
    """Go where one is sent, and come back with what one is given."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as browser:
        answer = await browser.get(door.url)
    assert answer.status_code == 302, answer.text
    where = urlsplit(answer.headers["location"])
    return dict(parse_qsl(where.query))
