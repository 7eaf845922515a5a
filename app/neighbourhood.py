"""Neighbourhood: everything that has to do with MCP servers, put together from the settings.

What reads their configuration, and what speaks to them, is loaded when there is one.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from app.config import LlmSetting, Settings
from app.core.calls import CallRequest
from app.core.definitions import SecretHeader
from app.core.errors import Misconfigured, StoreError, ToolUnavailable
from app.core.jsons import Raw
from app.core.mcp_servers import AnyServer
from app.core.ports import Clock, Processes, Workspace
from app.core.principals import ADMIN_PRINCIPAL
from app.core.redaction import Redactor
from app.core.results import Result
from app.core.sessions import DEFAULT_SESSION, Session
from app.core.tools import Alias, Tool
from app.core.walls import WalledProcesses
from app.custom import schemas
from app.dispatch.calls import outcome
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.registry import Registry
from app.dispatch.sessions import Sessions
from app.mcp import tools
from app.mcp.auth.cashiers import Cashier
from app.mcp.auth.couriers import Courier
from app.mcp.auth.registrations import Home
from app.mcp.guests import Reception
from app.mcp.oauth import OAuthDesk
from app.mcp.ports import Bulletin, Guest, Link, Log, Upstream
from app.mcp.resources import Resources
from app.mcp.samplings import Gateway
from app.mcp.servers import ServerBook
from app.mcp.shelves import Shelves
from app.mcp.upstreams import Surroundings
from app.net.outbound import CheckedOutbound
from app.net.placeholders import Find, require_writable, value_for
from app.net.resolver import Resolver
from app.net.tls import trusting_the_web
from app.store import mcp_tokens
from app.store.mcp_tokens import TokenBook
from app.store.principals import Keyring
from app.store.vault import Vault
from app.store.writer import Writer

if TYPE_CHECKING:
    from app.mcp.links import Links

EVERYWHERE = ("0.0.0.0/0", "::/0")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What servers are reached with."""

    find: Find
    processes: Processes
    walled: WalledProcesses
    workspaces: Callable[[Session], Workspace]
    url: Callable[[], str | None]
    """Where this service listens, once it does."""


class Neighbourhood:
    """The servers, how they are reached, what they have, and who answers what they ask."""

    def __init__(
        self, settings: Settings, registry: Registry, writer: Writer, *, clock: Clock, redactor: Redactor, reach: Reach
    ) -> None:
        self.bulletin = Bulletin()
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._redactor = redactor
        self._reach = reach
        self._keyring: Keyring | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        reception = self._open_reception()
        for tool in reception.tools:
            registry.add(tool)
        around = Surroundings(
            open_link=self._open_link,
            guests=reception.visitor,
            clock=clock,
            redactor=redactor,
            idle=settings.terminal_idle,
            bulletin=self.bulletin,
        )
        shelves = Shelves(registry, partial(_make, reception))
        self.book = ServerBook(shelves, writer, around, principals=self._principals)
        registry.expect = self.book.expected
        self.resources = Resources(self.book, reception)

    async def load(
        self, engine: AsyncEngine, vault: Vault, keyring: Keyring, sessions: Sessions, dispatcher: Dispatcher
    ) -> OAuthDesk:
        """Take up all servers with what they listed last. None is connected to before `book.begin`."""
        self._keyring = keyring
        self._dispatcher = dispatcher
        part = self._redactor.beside("mcp_tokens")
        stored = await mcp_tokens.open_all(engine, vault)
        tokens = TokenBook(self._writer, vault, self._clock, part, stored=stored)
        self._desk = self._open_desk(tokens)
        self.book.on_remove.append(self._desk.forget)
        sessions.on_delete.append(self.book.end_session)
        await self.book.load(engine, *self._configured())
        return self._desk

    def reload_soon(self) -> None:
        """Read the configured servers anew without anybody waiting for it; the log tells what came of it."""
        task = asyncio.create_task(self._reload())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End what is connected, when no call needs it any more."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self.resources.close()
        await self.book.close()
        if self._keyring is not None:
            await self._desk.close()

    async def _reload(self) -> None:
        try:
            await self.book.configure(*await asyncio.to_thread(self._configured))
        except (Misconfigured, StoreError) as error:
            log.error("the MCP servers of the configuration stay as they were: %s", error)
        else:
            log.info("the MCP servers of the configuration were read anew")

    def _configured(self) -> tuple[list[AnyServer], dict[str, str]]:
        """The configured servers, and why some cannot be had. What is secret in them is redacted from here on."""
        if not self._settings.mcp.servers and self._settings.mcp_config is None:
            return [], {}
        from app import mcp_config

        found = mcp_config.read(self._settings)
        found.tell()
        self._redactor.beside("mcp_config").replace(found.clear)
        return found.servers, found.unusable

    def _open_reception(self) -> Reception:
        llm = self._settings.llm
        return Reception(
            submit=self._submit,
            bulletin=self.bulletin,
            root_of=lambda session: self._reach.workspaces(session).root,
            roots=[str(root) for root in self._settings.mcp.roots],
            gateway=None if llm is None else self._gateway(llm),
        )

    def _gateway(self, llm: LlmSetting) -> Gateway:
        """Where it is, is the operator's word: no policy of a session counts, and it may be next door."""
        outbound = CheckedOutbound(self._reach.find, private_networks=EVERYWHERE)
        return Gateway(llm.url, llm.model, partial(outbound.send, owner=ADMIN_PRINCIPAL), llm.secret, llm.timeout)

    @cached_property
    def _links(self) -> "Links":
        from app.mcp.links import Links, Means
        from app.mcp.wires.sites import Ways

        reach, resolver = self._reach, Resolver(self._settings.private_networks)
        ways = Ways(find=resolver.find, header=self._header, trust=trusting_the_web, credentials=self._desk)
        means = Means(
            processes=reach.processes,
            walled=reach.walled,
            workspaces=reach.workspaces,
            secret=self._secret,
            ways=ways,
        )
        return Links(means)

    def _open_desk(self, tokens: TokenBook) -> OAuthDesk:
        courier = Courier(Resolver(self._settings.private_networks).find, trusting_the_web)
        cashier = Cashier(tokens, courier, self._clock, partial(value_for, self._reach.find))
        return OAuthDesk(tokens, cashier, self._clock, home=self._home, reconnect=self.book.reconnect)

    def _home(self) -> Home:
        """Where people come back to after signing in elsewhere."""
        settings = self._settings
        listens = self._reach.url() or f"http://127.0.0.1:{settings.port}"
        base = (settings.public_url or listens).rstrip("/").removesuffix(settings.root_path) + settings.root_path
        return Home.at(base, is_public=settings.public_url is not None)

    def _open_link(
        self, server: AnyServer, guest: Guest, *, owner: str | None, session: Session | None, log: Log
    ) -> AbstractAsyncContextManager[Link]:
        return self._links.open(server, guest, owner=owner, session=session, log=log)

    async def _submit(self, tool: str, arguments: Raw) -> Result:
        """A call of the admin's own, for what belongs to nobody else."""
        request = CallRequest(tool=tool, arguments=arguments)
        live = self._dispatcher.submit(request, Session(ADMIN_PRINCIPAL, DEFAULT_SESSION))
        try:
            await live.wait()
        except asyncio.CancelledError:
            await self._dispatcher.cancel(live)
            raise
        if live.failure is not None:
            raise ToolUnavailable(f"The call of {tool} could not be recorded.") from live.failure
        return outcome(live.call)

    def _secret(self, owner: str | None, name: str) -> str | None:
        found = self._reach.find(owner or ADMIN_PRINCIPAL, name)
        return None if found is None else found[1]

    def _header(self, owner: str | None, header: SecretHeader, host: str) -> str:
        """A secret as a header carries it. Raises a `CallError` where it is not meant for this host."""
        value = value_for(self._reach.find, owner or ADMIN_PRINCIPAL, header.secret, host)
        require_writable(header.secret, value)
        match header.form:
            case "bearer":
                return f"Bearer {value}"
            case "basic":
                return f"Basic {base64.b64encode(value.encode()).decode()}"
        return value

    def _principals(self) -> Iterable[str]:
        return self._keyring.principals if self._keyring else ()


def _make(reception: Reception, upstream: Upstream, raw: Raw, name: str, aliases: tuple[Alias, ...]) -> Tool:
    """This is done beside the loop, so what checks arguments is loaded here and not by the first call."""
    schemas.load()
    parser, checker = schemas.parser, schemas.checker
    return tools.make(upstream, raw, name, aliases, parser=parser, checker=checker, reception=reception)
