"""OAuth for MCP servers: starts and completes sign-ins, provides tokens and refreshes them.

A person signs in elsewhere: `start` returns the URL, `complete` takes the authorization response. The service does not
wait in between. The first request that needs a token refreshes it, in a task of its own: an authorization server that
issued a new refresh token has revoked the old one, so a canceled request must not lose it.
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
from app.mcp.client.oauth import authorization, registration
from app.mcp.client.oauth.authorization import TTL_SECONDS, PendingAuthorization, PendingAuthorizations
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
from app.mcp.client.oauth.tokens import Declined, TokenClient, auth_of, error_code
from app.store.mcp import Grant, TokenStore

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str | None, str]
"""A server by its owner and name."""
Reconnect = Callable[[str, str | None], Awaitable[None]]

STALE_REFUSAL_SECONDS = 2.0
"""For this long after a refresh a refusal may still concern the former token."""
CLOSE_SECONDS = 5.0


class SignInUrl(NamedTuple):
    """The URL where a person signs in, and when it expires."""

    url: str
    expires_at: int


class OAuthManager:
    """The `Credentials` port, and the sign-ins for it."""

    def __init__(
        self,
        store: TokenStore,
        client: TokenClient,
        clock: Clock,
        *,
        redirect: Callable[[], RedirectTarget],
        reconnect: Reconnect,
    ) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._redirect = redirect
        self._reconnect = reconnect
        self._pending = PendingAuthorizations()
        self._challenges: dict[Key, Challenge] = {}
        self._missing_scopes: dict[Key, str | None] = {}
        self._refreshed_at: dict[Key, float] = {}
        self._refreshes: dict[Key, asyncio.Task[Grant | None]] = {}
        self._tasks: dict[asyncio.Task[Any], Key] = {}

    async def headers(self, server: HttpServer, owner: str | None) -> Mapping[str, str]:
        if not uses_oauth(server):
            return {}
        grant = self._store.current(owner, server.name, server.url)
        if self._client.expires_soon(grant) if grant else needs_no_person(server):
            grant = await self._refresh(server, owner, grant)
        return {} if grant is None else {"Authorization": f"Bearer {grant.access_token}"}

    async def handle_refusal(self, server: HttpServer, owner: str | None, status: int, challenge: str | None) -> bool:
        if not uses_oauth(server):
            return False
        await _import_sdk()
        key, grant = (owner, server.name), self._store.current(owner, server.name, server.url)
        parsed = self._challenges[key] = read_challenge(challenge)
        if status == 403:
            if parsed.error != "insufficient_scope":
                return False
            self._missing_scopes[key] = union(grant.scope if grant else None, parsed.scope)
            return needs_no_person(server) and await self._refresh(server, owner) is not None
        seconds = self._clock.monotonic() - self._refreshed_at.get(key, -STALE_REFUSAL_SECONDS)
        if grant is not None and seconds < STALE_REFUSAL_SECONDS:
            return True
        return await self._refresh(server, owner) is not None

    async def start(self, server: HttpServer, owner: str | None, by: str) -> SignInUrl | None:
        """The URL for a person to sign in; None where that takes no person and is done. Raises `AuthFailed`."""
        if not uses_oauth(server):
            raise NoAuthorizationServer(f"{server.name} does not use OAuth.")
        await _import_sdk()
        if needs_no_person(server):
            await asyncio.shield(self._start_task((owner, server.name), self._client_credentials(server, owner)))
            await self._reconnect_if_enabled(server.name, owner)
            return None
        issuer, redirect = await self._discover(server, owner), self._redirect()
        authorization.require_pkce(issuer, redirect)
        scope = self._scope(server, owner, issuer)
        client = await self._client.client(server, owner, issuer, redirect, scope=scope)
        challenge, verifier = authorization.new_pkce()
        pending = PendingAuthorization(
            server=server,
            owner=owner,
            by=by,
            authorization_server=issuer,
            client=client,
            scope=scope,
            redirect_uri=redirect.callback,
            verifier=verifier,
        )
        state = self._pending.add(pending, self._clock.monotonic())
        return SignInUrl(pending.url(state, challenge), self._clock.now() + TTL_SECONDS * 1_000_000)

    async def complete(self, state: str, code: str | None, iss: str | None, error: str | None) -> PendingAuthorization:
        """Finish a sign-in with the authorization response. Raises `AuthFailed`."""
        pending = self._pending.take(state, self._clock.monotonic())
        issuer = pending.authorization_server
        authorization.check_issuer(iss, issuer)
        if error is not None:
            raise Declined(issuer.issuer, error_code(error) or "no valid error code")
        if not code:
            raise AuthFailed(f"{issuer.issuer} sent no code.")
        key = (pending.owner, pending.server.name)
        await asyncio.shield(self._start_task(key, self._client.exchange_code(pending, code)))
        self._clear_challenge(key)
        log.info("%s signed in at the MCP server %s", pending.by, pending.server.name)
        await self._reconnect_if_enabled(pending.server.name, pending.owner)
        return pending

    async def forget(self, server: str, owner: str | None) -> None:
        """Delete a server's tokens, end its sign-ins, and reconnect without the tokens."""
        key = (owner, server)
        self._pending.drop(owner, server)
        if running := [task for task, of in self._tasks.items() if of == key]:
            await asyncio.wait(running)  # they would store their tokens afterwards
        self._challenges.pop(key, None)
        self._missing_scopes.pop(key, None)
        self._refreshed_at.pop(key, None)
        if await self._store.remove(owner, server):
            await self._reconnect_if_enabled(server, owner)

    def document(self) -> dict[str, Any] | None:
        """The client metadata document; None where authorization servers could not reach it."""
        redirect = self._redirect()
        return None if redirect.document is None else registration.metadata_document(redirect)

    async def close(self) -> None:
        """Wait for running token requests, for a while."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _clear_challenge(self, key: Key) -> None:
        """The challenge is answered; only the metadata URL is of further use."""
        self._missing_scopes.pop(key, None)
        if key in self._challenges:
            self._challenges[key] = Challenge(metadata_url=self._challenges[key].metadata_url)

    async def _reconnect_if_enabled(self, server: str, owner: str | None) -> None:
        with suppress(InvalidServer):  # it was removed or disabled meanwhile
            await self._reconnect(server, owner)

    async def _refresh(self, server: HttpServer, owner: str | None, grant: Grant | None = None) -> Grant | None:
        """New tokens, or the given ones where the refresh fails and these are still valid; None: a person has to sign
        in. Raises `NetworkError` where a retry may succeed.
        """
        key = (owner, server.name)
        task = self._refreshes.get(key)
        if task is None:
            task = self._refreshes[key] = self._start_task(key, self._request_refresh(server, owner))
            task.add_done_callback(lambda done: self._refreshes.pop(key))
        try:
            return await asyncio.shield(task)
        except AuthFailed as error:
            if grant is not None and (grant.expires_at or 0) > self._clock.now():
                return grant
            if isinstance(error, Unreachable):
                raise NetworkError(f"There is no token for {server.name}: {error}") from None
            log.warning("there is no token for the MCP server %s: %s", server.name, error)
            return None

    async def _request_refresh(self, server: HttpServer, owner: str | None) -> Grant | None:
        await _import_sdk()
        if needs_no_person(server):
            refreshed: Grant | None = await self._client_credentials(server, owner)
        else:
            grant = self._store.current(owner, server.name, server.url)
            refreshed = None if grant is None else await self._client.refresh(server, grant)
        if refreshed is not None:
            self._refreshed_at[owner, server.name] = self._clock.monotonic()
        return refreshed

    async def _client_credentials(self, server: HttpServer, owner: str | None) -> Grant:
        issuer = await self._discover(server, owner)
        grant = await self._client.client_credentials(server, owner, issuer, self._scope(server, owner, issuer))
        self._clear_challenge((owner, server.name))
        return grant

    async def _discover(self, server: HttpServer, owner: str | None) -> AuthorizationServer:
        challenge = self._challenges.get((owner, server.name), Challenge())
        return await discover(self._client.send(server, owner), server.url, challenge, auth_of(server).issuer)

    def _scope(self, server: HttpServer, owner: str | None, issuer: AuthorizationServer) -> str | None:
        """The configured scope, else that of the challenge; with the scopes that were missing before."""
        key = (owner, server.name)
        grant_types = ["client_credentials"] if needs_no_person(server) else registration.GRANT_TYPES
        requested = self._challenges.get(key, Challenge()).scope
        return union(self._missing_scopes.get(key), auth_of(server).scope or issuer.scopes(requested, grant_types))

    def _start_task(self, key: Key, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work for this server that is finished even if its caller is canceled."""
        task = asyncio.create_task(work)
        self._tasks[task] = key
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the caller may be gone


def uses_oauth(server: HttpServer) -> bool:
    """Whether OAuth applies: also without an `auth`, as long as no Authorization header is configured."""
    if server.auth is None:
        return not any(name.lower() == "authorization" for name in server.headers)
    return isinstance(server.auth, OAuth)


def needs_no_person(server: HttpServer) -> bool:
    return auth_of(server).grant == "client_credentials"


async def _import_sdk() -> None:
    """In a thread: the SDK takes half a second to import."""
    await asyncio.to_thread(importlib.import_module, "mcp.client.auth.utils")
