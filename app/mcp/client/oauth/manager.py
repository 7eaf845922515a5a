"""OAuth: what lets us in at servers that know people, got with a person's help or alone, and kept from then on.

A person signs in elsewhere: `begin` gives the address, `complete` takes what
they come back with. In between the service does not wait: any number of
sign-ins can be under way, and one that is never finished costs nothing. Tokens
are renewed by the first who needs them, one renewal at a time, in a task of its
own: an issuer that gave a new refresh token has voided the old one, so nothing
that happens to who asked may lose it.
"""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from app.core.errors import NetworkError
from app.core.mcp_servers import HttpServer, InvalidServer, OAuth
from app.core.ports import Clock
from app.mcp.client.oauth import authorization, registration, tokens
from app.mcp.client.oauth.authorization import SECONDS, PendingAuthorization, PendingAuthorizations
from app.mcp.client.oauth.discovery import (
    AuthorizationServer,
    Challenge,
    NoAuthorizationServer,
    discover,
    read_challenge,
    union,
)
from app.mcp.client.oauth.http import AuthFailed, Unreachable
from app.mcp.client.oauth.registration import RedirectTarget
from app.mcp.client.oauth.tokens import TokenClient, auth_of
from app.store.mcp import Grant, TokenStore

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str | None, str]
"""Whose server, and its name."""
Reconnect = Callable[[str, str | None], Awaitable[None]]

LATE = 2.0
"""Seconds after a renewal in which a refusal may still be meant for the token before."""
CLOSING = 5.0


class SignInUrl(NamedTuple):
    """Where a person signs in, and until when."""

    url: str
    until: int


class OAuthManager:
    """The `Credentials` port, and what a person has to do for it."""

    def __init__(
        self,
        book: TokenStore,
        cashier: TokenClient,
        clock: Clock,
        *,
        home: Callable[[], RedirectTarget],
        reconnect: Reconnect,
    ) -> None:
        self._book = book
        self._cashier = cashier
        self._clock = clock
        self._home = home
        self._reconnect = reconnect
        self._sign_ins = PendingAuthorizations()
        self._challenges: dict[Key, Challenge] = {}
        self._wanted: dict[Key, str | None] = {}
        self._renewed_at: dict[Key, float] = {}
        self._renewals: dict[Key, asyncio.Task[Grant | None]] = {}
        self._tasks: dict[asyncio.Task[Any], Key] = {}

    async def headers(self, server: HttpServer, owner: str | None) -> Mapping[str, str]:
        if not is_oauth(server):
            return {}
        grant = self._book.current(owner, server.name, server.url)
        if self._cashier.is_due(grant) if grant else is_alone(server):
            grant = await self._renewed(server, owner, grant)
        return {} if grant is None else {"Authorization": f"Bearer {grant.access_token}"}

    async def refused(self, server: HttpServer, owner: str | None, status: int, challenge: str | None) -> bool:
        if not is_oauth(server):
            return False
        await _load()
        key, grant = (owner, server.name), self._book.current(owner, server.name, server.url)
        asked = self._challenges[key] = read_challenge(challenge)
        if status == 403:
            if asked.error != "insufficient_scope":
                return False
            self._wanted[key] = union(grant.scope if grant else None, asked.scope)
            return is_alone(server) and await self._renewed(server, owner) is not None
        if grant is not None and self._clock.monotonic() - self._renewed_at.get(key, -LATE) < LATE:
            return True
        return await self._renewed(server, owner) is not None

    async def begin(self, server: HttpServer, owner: str | None, by: str) -> SignInUrl | None:
        """Where a person signs in; None where it takes no person, and is done. Raises `AuthFailed`."""
        if not is_oauth(server):
            raise NoAuthorizationServer(f"{server.name} is not set up for signing in.")
        await _load()
        if is_alone(server):
            await asyncio.shield(self._task((owner, server.name), self._take_alone(server, owner)))
            await self._use(server.name, owner)
            return None
        issuer, home = await self._discover(server, owner), self._home()
        authorization.require_usable(issuer, home)
        scope = self._scope(server, owner, issuer)
        client = await self._cashier.client(server, owner, issuer, home, scope=scope)
        challenge, verifier = authorization.new_proof()
        sign_in = PendingAuthorization(
            server=server,
            owner=owner,
            by=by,
            issuer=issuer,
            client=client,
            scope=scope,
            redirect_uri=home.callback,
            verifier=verifier,
        )
        state = self._sign_ins.add(sign_in, self._clock.monotonic())
        return SignInUrl(sign_in.url(state, challenge), self._clock.now() + SECONDS * 1_000_000)

    async def complete(self, state: str, code: str | None, iss: str | None, error: str | None) -> PendingAuthorization:
        """Finish what `begin` began, with what the person came back with. Raises `AuthFailed`."""
        sign_in = self._sign_ins.take(state, self._clock.monotonic())
        authorization.check_sender(iss, sign_in.issuer)
        if error is not None:
            raise tokens.Declined(sign_in.issuer.name, tokens.known_code(error) or "it did not say why")
        if not code:
            raise AuthFailed(f"{sign_in.issuer.name} sent no code.")
        key = (sign_in.owner, sign_in.server.name)
        await asyncio.shield(self._task(key, self._cashier.take_for(sign_in, code)))
        self._settle(key)
        log.info("%s signed in at the MCP server %s", sign_in.by, sign_in.server.name)
        await self._use(sign_in.server.name, sign_in.owner)
        return sign_in

    async def forget(self, server: str, owner: str | None) -> None:
        """Drop all that was got for a server, and end the sign-ins under way. A connection with it ends, too."""
        self._sign_ins.drop(owner, server)
        if getting := [task for task, key in self._tasks.items() if key == (owner, server)]:
            await asyncio.wait(getting)  # what they bring would be kept after all
        self._challenges.pop((owner, server), None)
        self._wanted.pop((owner, server), None)
        self._renewed_at.pop((owner, server), None)
        if await self._book.remove(owner, server):
            await self._use(server, owner)

    def document(self) -> dict[str, Any] | None:
        """What issuers read about us; None where they could not reach it."""
        home = self._home()
        return None if home.document is None else registration.document(home)

    async def close(self) -> None:
        """Let what is under way come to its end, for a while."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSING)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _settle(self, key: Key) -> None:
        """What was asked for is had; of the question only where to read about it is worth keeping."""
        self._wanted.pop(key, None)
        if key in self._challenges:
            self._challenges[key] = Challenge(metadata_url=self._challenges[key].metadata_url)

    async def _use(self, server: str, owner: str | None) -> None:
        with suppress(InvalidServer):  # somebody removed it, or switched it off, meanwhile
            await self._reconnect(server, owner)

    async def _renewed(self, server: HttpServer, owner: str | None, grant: Grant | None = None) -> Grant | None:
        """New tokens, or the given ones where there are no new ones and these are still good; None: a person is needed.

        Raises `NetworkError` where it may be better the next time.
        """
        key = (owner, server.name)
        task = self._renewals.get(key)
        if task is None:
            task = self._renewals[key] = self._task(key, self._renew(server, owner))
            task.add_done_callback(lambda done: self._renewals.pop(key))
        try:
            return await asyncio.shield(task)
        except AuthFailed as error:
            if grant is not None and (grant.expires_at or 0) > self._clock.now():
                return grant
            if isinstance(error, Unreachable):
                raise NetworkError(f"There is no token for {server.name}: {error}") from None
            log.warning("there is no token for the MCP server %s: %s", server.name, error)
            return None

    async def _renew(self, server: HttpServer, owner: str | None) -> Grant | None:
        await _load()
        if is_alone(server):
            renewed: Grant | None = await self._take_alone(server, owner)
        else:
            grant = self._book.current(owner, server.name, server.url)
            renewed = None if grant is None else await self._cashier.renew(server, grant)
        if renewed is not None:
            self._renewed_at[owner, server.name] = self._clock.monotonic()
        return renewed

    async def _take_alone(self, server: HttpServer, owner: str | None) -> Grant:
        issuer = await self._discover(server, owner)
        grant = await self._cashier.take_alone(server, owner, issuer, self._scope(server, owner, issuer))
        self._settle((owner, server.name))
        return grant

    async def _discover(self, server: HttpServer, owner: str | None) -> AuthorizationServer:
        challenge = self._challenges.get((owner, server.name), Challenge())
        return await discover(self._cashier.send(server, owner), server.url, challenge, auth_of(server).issuer)

    def _scope(self, server: HttpServer, owner: str | None, issuer: AuthorizationServer) -> str | None:
        """What is configured, else what the server asks for; with what was found missing before."""
        key = (owner, server.name)
        kinds = ["client_credentials"] if is_alone(server) else registration.GRANTS
        asked = self._challenges.get(key, Challenge()).scope
        return union(self._wanted.get(key), auth_of(server).scope or issuer.scopes(asked, kinds))

    def _task(self, key: Key, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Something for this server that is brought to its end whatever becomes of who asked."""
        task = asyncio.create_task(work)
        self._tasks[task] = key
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # nobody may be there any more to look at it


def is_oauth(server: HttpServer) -> bool:
    """Whether a server may be signed in at: also one of which only its address is known, as long as nothing else
    says who we are."""
    if server.auth is None:
        return not any(name.lower() == "authorization" for name in server.headers)
    return isinstance(server.auth, OAuth)


def is_alone(server: HttpServer) -> bool:
    """Whether nobody has to sign in."""
    return auth_of(server).grant == "client_credentials"


async def _load() -> None:
    """The SDK takes half a second to load; the loop goes on meanwhile."""
    await asyncio.to_thread(importlib.import_module, "mcp.client.auth.utils")
