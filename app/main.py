"""Puts the house together. Only this module knows every room."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from app import __version__
from app.api import asks as ask_routes
from app.api import calls, events, health, keys, metrics, openapi, problems, tickets
from app.api import rules as rule_routes
from app.api import secrets as secret_routes
from app.api import sessions as session_routes
from app.api import tools as tool_routes
from app.api.access import HostGuard, Use
from app.api.access_log import AccessLog
from app.api.express import PATH, ExpressApp
from app.api.limits import BodyLimit
from app.api.mcp import SpeakMcp
from app.api.readiness import Readiness
from app.api.streams import StreamSlots
from app.api.submissions import CreateCall
from app.api.tickets import Tickets
from app.config import RuleSetting, Settings
from app.core.clocks import SystemClock
from app.core.errors import Misconfigured
from app.core.hooks import Hook
from app.core.ids import Ids, time_of
from app.core.ports import Clock, Tracer
from app.core.principals import ADMIN_PRINCIPAL, Key, Scope, digest
from app.core.redaction import Redactor
from app.core.rules import Rule
from app.core.secrets import EVERYBODY
from app.core.tools import Tool
from app.custom import hooks as custom_hooks
from app.dispatch.asks import Asks
from app.dispatch.capacity import Capacity
from app.dispatch.desk import Desk
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events import Hub
from app.dispatch.gate import Gates
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.ledger import Ledger
from app.dispatch.loops import Loops
from app.dispatch.permissions import Permissions, RulePart
from app.dispatch.recovery import recover
from app.dispatch.redaction import Cover
from app.dispatch.registry import Registry
from app.dispatch.retention import Limits, Retention
from app.dispatch.rules import RuleBook
from app.dispatch.sessions import Sessions
from app.mcp.server import McpDoor
from app.sandbox.folders import make_workspace, python_files
from app.sandbox.processes import TrustedProcesses
from app.sandbox.workspace import LocalWorkspace
from app.sandbox.workspaces import Workspaces
from app.store import admin_key, db, migrate, principals
from app.store import calls as stored_calls
from app.store import events as stored_events
from app.store import rules as stored_rules
from app.store import secrets as stored_secrets
from app.store import sessions as stored_sessions
from app.store.lock import DataDirLock
from app.store.principals import Keyring
from app.store.retention import floor_of
from app.store.secrets import SecretBook
from app.store.writer import Writer
from app.tools import BUILTINS

ABOUT = "Lists tools, runs them for any LLM agent, and keeps a durable, watchable record of every call."


class House:
    """Everything a running service holds, from the lock on its data directory to the open calls."""

    def __init__(
        self,
        settings: Settings,
        tools: Iterable[Tool],
        hooks: Iterable[Hook] = (),
        redactor: Redactor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.redactor = redactor or Redactor(shapes_in_output=settings.redact_shapes_in_output)
        self._registry = Registry(tools)
        self._ledger = Ledger(self._registry)
        self._given_hooks = tuple(hooks)
        self._clock = clock or SystemClock()
        self._drained = False

    async def open(self) -> Use:
        """Lock, migrate, load, recover: after this the service can take calls. What fails on the way is undone."""
        async with AsyncExitStack() as undo:
            use = await self._open(undo)
            self._undo = undo.pop_all()
        return use

    async def _open(self, undo: AsyncExitStack) -> Use:
        data_dir = self.settings.data_dir.absolute()
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        url = db.database_url(data_dir, self.settings.database_url)
        self.lock = DataDirLock(data_dir)
        undo.callback(self.lock.release)
        self._workspaces = self._open_workspaces(data_dir)
        undo.callback(self._workspaces.close)
        await asyncio.to_thread(migrate.upgrade, url)
        self._engine = db.open_readers(url)
        undo.push_async_callback(self._engine.dispose)
        floor = await floor_of(self._engine)
        self._hub = Hub(await stored_events.last_seq(self._engine), floor, self.settings.heartbeat)
        self._writer = Writer(url, self._hub.publish)
        undo.push_async_callback(self._writer.close)
        self._vault = await stored_secrets.open_vault(self._engine, data_dir)
        book = await self._open_book()
        ids = Ids(self._clock, time_of(await stored_calls.newest_id(self._engine) or ""))
        journal = self._open_journal()
        self._hooks = Hooks(self._open_hooks(book), self._clock)
        self._rules = RuleBook(self._writer, await stored_rules.all_kept(self._engine))
        permissions = self._open_permissions()
        self._asks = self._open_asks(journal, permissions, ids)
        self._dispatcher = self._open_dispatcher(journal, ids, self._open_tracer(undo))
        keyring = await self._open_keyring(data_dir, ids)
        self._workspaces.know(await stored_sessions.roots(self._engine, self._workspaces.made))
        sessions = Sessions(self._engine, self._writer, self._clock, self._rules, self._workspaces.home)
        mcp = McpDoor(self._dispatcher, sessions, __version__)
        undo.push_async_callback(mcp.close)
        readiness = self._open_readiness(data_dir, undo)
        keys = {key.id: key for key in await principals.all_keys(self._engine)}
        await recover(self._engine, journal, self._dispatcher, keys)
        sweeping = asyncio.create_task(self._open_retention().run())
        undo.push_async_callback(_stop, sweeping)
        return Use(
            dispatcher=self._dispatcher,
            engine=self._engine,
            writer=self._writer,
            hub=self._hub,
            keyring=keyring,
            ids=ids,
            clock=self._clock,
            mcp=mcp,
            streams=StreamSlots(self.settings.streams_per_key),
            secrets=book,
            ledger=self._ledger,
            readiness=readiness,
            desk=self._asks.desk,
            rules=self._rules,
            permissions=permissions,
            sessions=sessions,
            places=self._workspaces,
            network_policy=policy.policy() if (policy := self.settings.network_policy) else None,
        )

    async def drain(self) -> None:
        """Let calls finish within the grace period, write what did not, end the streams."""
        if not self._drained:
            self._drained = True
            await self._dispatcher.running.drain(self.settings.grace)
            self._hub.close()

    def hurry(self) -> None:
        """No grace any more: what runs is interrupted now."""
        self._dispatcher.running.interrupt_all()

    async def close(self) -> None:
        await self.drain()
        await self._undo.aclose()

    def _open_journal(self) -> Journal:
        return Journal(
            self._writer,
            self._engine,
            self._hub,
            clock=self._clock,
            cover=Cover(self.redactor, self._vault),
            ledger=self._ledger,
            owner=secrets.token_hex(8),
            output_limit=self.settings.output_limit,
        )

    def _open_tracer(self, undo: AsyncExitStack) -> Tracer | None:
        """The extra is asked for only when traces are."""
        if self.settings.traces_endpoint is None:
            return None
        try:
            from app.net.traces import open_tracing
        except ModuleNotFoundError:
            raise Misconfigured(
                "traces_endpoint is set, but what sends traces is not installed: pip install 'toolcrib[otel]'."
            ) from None
        tracing = open_tracing(self.settings.traces_endpoint, __version__)
        undo.push_async_callback(tracing.close)
        return tracing

    def _open_readiness(self, data_dir: Path, undo: AsyncExitStack) -> Readiness:
        folders = {data_dir, Path(str(self._engine.url.database)).parent}
        readiness = Readiness(self._writer, self._engine, self._dispatcher.running, folders, self.settings.calls_limit)
        undo.push_async_callback(readiness.close)
        return readiness

    def _open_permissions(self) -> Permissions:
        configuration = RulePart(_rules(self.settings.rules), self.settings.approval)
        agents = {name: RulePart(_rules(one.rules), one.approval) for name, one in self.settings.agents.items()}
        return Permissions(configuration, agents, self._rules)

    def _open_asks(self, journal: Journal, permissions: Permissions, ids: Ids) -> Asks:
        desk = Desk(journal, self._engine, self._rules, ids=ids, clock=self._clock)
        seconds, on_ask = self.settings.ask_timeout, self.settings.on_ask
        loops = Loops(self._engine)
        return Asks(desk, permissions, loops, self._hooks, journal.cover, seconds=seconds, on_ask=on_ask)

    def _open_dispatcher(self, journal: Journal, ids: Ids, tracer: Tracer | None) -> Dispatcher:
        return Dispatcher(
            registry=self._registry,
            hooks=self._hooks,
            asks=self._asks,
            gates=Gates(self.settings.queue_timeout),
            journal=journal,
            ids=ids,
            workspaces=self._workspaces.of,
            tracer=tracer,
            capacity=Capacity(self.settings.calls_per_key, self.settings.calls_limit, self._clock),
        )

    def _open_hooks(self, book: SecretBook) -> list[Hook]:
        """Those we were given, the configured ones, those of files, those of installed packages."""

        def sign(name: str) -> str:
            if (held := book.find(EVERYBODY, name)) is None:
                raise LookupError(name)
            return held[1]

        reach = custom_hooks.Reach(
            processes=TrustedProcesses(), outbound=None, sign=sign, clock=self._clock, environ=os.environ
        )
        configured = custom_hooks.from_settings(self.settings.hooks, reach)
        files, installed = custom_hooks.from_files(self._hook_files()), custom_hooks.from_entry_points()
        self.hook_failures = files.failures + installed.failures
        return [*self._given_hooks, *configured, *files.hooks, *installed.hooks]

    def _hook_files(self) -> list[Path]:
        if (folder := self.settings.hooks_dir) is None:
            return []
        try:
            return python_files(folder)
        except OSError as error:
            raise Misconfigured(f"hooks_dir is {folder}, which cannot be read: {error.strerror}.") from None

    def _open_retention(self) -> Retention:
        limits = Limits(self.settings.retention_days, self.settings.retention_bytes)
        return Retention(self._engine, self._writer, self._hub, self._clock, limits)

    def _open_workspaces(self, data_dir: Path) -> Workspaces:
        home = LocalWorkspace(self.settings.workspace or make_workspace(data_dir / "workspace"))
        return Workspaces(home, data_dir, self.settings.workspace_roots)

    async def _open_book(self) -> SecretBook:
        """The stored secrets and the configured ones, which are read now and never kept."""
        configured = [setting.secret(name) for name, setting in self.settings.secrets.items()]
        stored = await stored_secrets.open_all(self._engine, self._vault)
        return SecretBook(self._writer, self._vault, self._clock, self.redactor, stored=stored, configured=configured)

    async def _open_keyring(self, data_dir: Path, ids: Ids) -> Keyring:
        """The stored keys and the admin's: the configured one, or the one in the key file. Revoked, it stays so."""
        known = await principals.all_keys(self._engine)
        keyring = Keyring(known)
        configured = self.settings.api_key
        token = configured.get_secret_value() if configured else admin_key.read_or_make(data_dir)
        self.redactor.keep(token)
        if all(key.digest != digest(token) for key in known):
            id, at = ids.new("key")
            key = Key(id, ADMIN_PRINCIPAL, "admin", frozenset({Scope.ADMIN}), digest(token), at)
            await self._writer.submit(lambda batch: principals.add_key(batch, key))
            keyring.put(key)
        elif configured and (found := keyring.find(token)):
            keyring.put(
                replace(found, scopes=frozenset({Scope.ADMIN}))
            )  # the operator's word, for as long as it is set
        return keyring


def _rules(settings: Iterable[RuleSetting]) -> tuple[Rule, ...]:
    return tuple(setting.rule() for setting in settings)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def create_app(
    settings: Settings,
    tools: Iterable[Tool] = BUILTINS,
    hooks: Iterable[Hook] = (),
    redactor: Redactor | None = None,
) -> FastAPI:
    """The service as an ASGI application; `app.state.house` is the house once it is open."""
    house = House(settings, tools, hooks, redactor)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.use = await house.open()
        yield
        await house.close()

    create_call = CreateCall()
    app = ExpressApp(
        create_call,
        HostGuard([*settings.allowed_hosts, settings.host], settings.allowed_origins),
        BodyLimit(settings.body_limit),
        origins=settings.allowed_origins,
        access_log=AccessLog() if settings.access_log else None,
        prefix=settings.root_path,
        title="Toolcrib",
        version=__version__,
        summary="Tools for LLM agents: listed, run, recorded.",
        description=ABOUT,
        lifespan=lifespan,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=_operation_id,
    )
    app.state.house = house
    app.state.redactor = house.redactor
    app.state.use = None
    app.state.tickets = Tickets()
    _add_routes(app, create_call)
    problems.install(app)
    openapi.install(app)
    return app


def _add_routes(app: FastAPI, create_call: CreateCall) -> None:
    app.router.routes.append(Route(PATH, create_call, methods=["POST"], name="create_call", include_in_schema=False))
    app.router.routes.append(Route("/mcp", SpeakMcp(), include_in_schema=False))
    of_calls = (calls, events, session_routes, tool_routes, ask_routes, rule_routes)
    for module in (*of_calls, keys, secret_routes, tickets, health, metrics):
        app.include_router(module.router)


def _operation_id(route: APIRoute) -> str:
    return route.name
