"""The house: every room of a running service, opened in order and closed in reverse.

Shell tools as the operator wants them: which ones models are offered, and how long a command may be silent.
"""

import asyncio
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app import __version__
from app.api.auth import Services
from app.api.http.sse import StreamSlots
from app.api.readiness import Readiness
from app.config import RuleSetting, Settings
from app.core.custom_tools import Maker
from app.core.errors import Misconfigured
from app.core.hooks import Hook
from app.core.llm_models import SHELL_TOOLS, ShellChoice, offers_shell
from app.core.network_policy import NetworkPolicy
from app.core.ports import Clock, Tracer
from app.core.redaction import Redactor
from app.core.results import Result
from app.core.rules import Rule
from app.core.tools import Audience, Context, Ready, Tool
from app.core.util.clocks import SystemClock
from app.core.util.ids import Ids, time_of
from app.custom import client_tools, http_tools
from app.custom.openapi.importer import ApiImporter
from app.dispatch.call_stats import CallStats
from app.dispatch.capacity import Capacity
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.gate import Gates
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.permission.asks import AskQueue
from app.dispatch.permission.doom_loop import DoomLoopGuard
from app.dispatch.permission.permissions import Permissions, RuleSource
from app.dispatch.permission.rules import RuleStore
from app.dispatch.permission.stage import PermissionStage
from app.dispatch.recovery import recover
from app.dispatch.redaction import CallRedactor
from app.dispatch.retention import Limits, Retention
from app.dispatch.session.repl_kernels import Kernels
from app.dispatch.session.sessions import Sessions
from app.dispatch.session.terminals import Terminals
from app.dispatch.tools.file_tools import FileTools
from app.dispatch.tools.listing import Listing
from app.dispatch.tools.registry import Registry
from app.dispatch.tools.runtime_tools import RuntimeTools
from app.dispatch.uploads import take_up
from app.mcp.server.app import McpServerApp
from app.mcp_setup import McpDeps, McpSetup
from app.net.outbound import CheckedOutbound
from app.plugins import load_hooks, load_tools, require_tools_dir
from app.runs.submit import Runs
from app.sandbox.files.ownership import make_data_dir, tool_owner
from app.sandbox.files.roots import Root, RootSet, open_extras
from app.sandbox.files.uploads import SpooledUploads
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.files.workspaces import HOME_FOLDER, OWN_FOLDER, Workspaces, make_workspace
from app.sandbox.ripgrep import Ripgrep
from app.sandbox_setup import SandboxSetup
from app.store import admin_key, db, migrate, principals, vault
from app.store import calls as stored_calls
from app.store import events as stored_events
from app.store import rules as stored_rules
from app.store import secrets as stored_secrets
from app.store import sessions as stored_sessions
from app.store.lock import DataDirLock
from app.store.principals import Keyring
from app.store.retention import floor_of
from app.store.secrets import SecretStore
from app.store.writer import Writer
from app.text.bm25 import rank

DISABLED = "The operator has switched off the tools that run commands."


def fitted(tools: Iterable[Tool], settings: Settings) -> list[Tool]:
    """The same tools. A shell tool that a model is not offered can still be called by its name, unless none may be."""
    return [_fitted(tool, settings) if tool.name in SHELL_TOOLS else tool for tool in tools]


def _fitted(tool: Tool, settings: Settings) -> Tool:
    tool = replace(tool, suits=partial(_suits, settings.shell, tool.name))
    if settings.shell == "disabled":
        return replace(tool, init=_refuse)
    return replace(tool, run=partial(_run, tool, settings.silence_timeout)) if settings.silence_timeout else tool


def _suits(choice: ShellChoice, name: str, audience: Audience) -> bool:
    return offers_shell(choice, audience.model, name)


async def _refuse(audience: Audience) -> Ready:
    return Ready(reason=DISABLED)


async def _run(tool: Tool, silence: float, args: Any, ctx: Context) -> Result:
    ctx.extra["silence"] = silence
    return await tool.run(args, ctx)


THREADS = 32
"""Files are read and written in threads. With as few as asyncio has by itself, one session would hold up another."""

MAKERS: dict[str, Maker] = {"http": http_tools.make, "client": client_tools.make}
"""What makes tools of definitions, by their kind."""
UPLOADS = 16
"""How many of the largest uploads there is room for."""


class Service:
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
        data_dir, self._owner = settings.data_dir.absolute(), tool_owner(settings.sandbox.uid)
        self._clock = clock or SystemClock()
        self._walling = SandboxSetup(settings, data_dir, self._clock)
        self._registry = Registry(self._walling.offered(tool) for tool in fitted(tools, settings))
        self._ledger = CallStats(self._registry)
        self._given_hooks = tuple(hooks)
        self._drained = False

    async def open(self) -> Services:
        """Lock, migrate, load, recover: after this the service can take calls. What fails on the way is undone."""
        async with AsyncExitStack() as undo:
            use = await self._open(undo)
            self._undo = undo.pop_all()
        return use

    async def _open(self, undo: AsyncExitStack) -> Services:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "toolcrib"))
        data_dir = self._open_folders(undo)
        await self._open_store(data_dir, undo)
        book = await self._open_book()
        ids = Ids(self._clock, time_of(await stored_calls.newest_id(self._engine) or ""))
        journal = self._open_journal()
        self._open_ways_out(book, undo)
        self._hooks = self._open_hooks(book)
        self._rules = RuleStore(self._writer, await stored_rules.load_all(self._engine))
        self._permissions = self._open_permissions()
        sessions = await self._open_sessions()
        self._asks = self._open_asks(journal, sessions, ids)
        self._dispatcher = self._open_dispatcher(journal, book, ids, self._open_tracer(undo))
        undo.push_async_callback(self._end_processes)
        keyring = await self._open_keyring(data_dir, ids)
        tools = await self._open_tools(keyring)
        undo.push_async_callback(self.files.close)
        oauth = await self._neighbourhood.load(self._engine, self._vault, keyring, sessions, self._dispatcher)
        listing = self._open_listing()
        mcp = self._open_mcp_server(sessions, listing, undo)
        readiness = self._open_readiness(data_dir, undo)
        await self._recover(journal, undo)
        return Services(
            dispatcher=self._dispatcher,
            engine=self._engine,
            writer=self._writer,
            hub=self._hub,
            keyring=keyring,
            ids=ids,
            clock=self._clock,
            mcp=mcp,
            runtime_tools=tools,
            file_tools=self.files,
            listing=listing,
            stream_slots=StreamSlots(self.settings.streams_per_key),
            secrets=book,
            call_stats=self._ledger,
            readiness=readiness,
            asks=self._asks.desk,
            rules=self._rules,
            sessions=sessions,
            workspaces=self._workspaces,
            sandbox=self._walling.inspector,
            network_policy=self._policy,
            servers=self._neighbourhood.book,
            oauth=oauth,
            runs=Runs(self._dispatcher, self._engine, self._writer, self.redactor),
            stdio_over_rest=self.settings.mcp.stdio_over_rest,
        )

    def _open_folders(self, undo: AsyncExitStack) -> Path:
        """The folder of the records, which is nobody else's as long as this service runs, and the workspaces."""
        data_dir = self.settings.data_dir.absolute()
        make_data_dir(data_dir, self._owner, (HOME_FOLDER, OWN_FOLDER, vault.FILE_NAME))
        self.lock = DataDirLock(data_dir)
        undo.callback(self.lock.release)
        self._workspaces = self._open_workspaces(data_dir)
        undo.callback(self._workspaces.close)
        return data_dir

    async def _open_store(self, data_dir: Path, undo: AsyncExitStack) -> None:
        """The memory, brought up to date: readers, what tells of commits, the writer, the vault."""
        url = db.database_url(data_dir, self.settings.database_url)
        await asyncio.to_thread(migrate.upgrade, url)
        self._engine = db.open_readers(url)
        undo.push_async_callback(self._engine.dispose)
        floor = await floor_of(self._engine)
        self._hub = EventHub(await stored_events.last_seq(self._engine), floor, self.settings.heartbeat)
        self._writer = Writer(url, self._hub.publish)
        undo.push_async_callback(self._writer.close)
        self._vault = await stored_secrets.open_vault(self._engine, data_dir)

    async def _recover(self, journal: Journal, undo: AsyncExitStack) -> None:
        """Take up what an earlier service left, then what goes on beside the calls."""
        await self._walling.begin(self._registry.all(None))
        self._neighbourhood.book.begin()
        keys = {key.id: key for key in await principals.all_keys(self._engine)}
        await recover(self._engine, journal, self._dispatcher, keys)
        take_up(self._dispatcher.uploads, self._dispatcher.running)
        sweeping = asyncio.create_task(self._open_retention().run())
        undo.push_async_callback(_stop, sweeping)
        undo.push_async_callback(self._registry.probes.close)
        probing = asyncio.create_task(self._registry.probes.ask_all(self._registry.all(None)))
        undo.push_async_callback(_stop, probing)

    async def drain(self) -> None:
        """Let calls finish within the grace period, write what did not, end the streams."""
        if not self._drained:
            self._drained = True
            await self._dispatcher.running.drain(self.settings.grace)
            await self._end_processes()
            self._hub.close()

    def reload_soon(self) -> None:
        """Read what comes from files anew: tools, and MCP servers."""
        self.files.reload_soon()
        self._neighbourhood.reload_soon()

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
            cover=CallRedactor(self.redactor, self._vault),
            ledger=self._ledger,
            owner=secrets.token_hex(8),
            output_limit=self.settings.output_limit,
            root_path=self.settings.root_path,
        )

    def _open_tracer(self, undo: AsyncExitStack) -> Tracer | None:
        """The extra is asked for only when traces are."""
        if self.settings.traces_endpoint is None:
            return None
        try:
            from app.net.otel import open_tracing
        except ModuleNotFoundError:
            raise Misconfigured(
                "traces_endpoint is set, but what sends traces is not installed: pip install 'toolcrib[otel]'."
            ) from None
        tracing = open_tracing(self.settings.traces_endpoint, __version__)
        undo.push_async_callback(tracing.close)
        return tracing

    def _open_readiness(self, data_dir: Path, undo: AsyncExitStack) -> Readiness:
        folders = {data_dir, Path(str(self._engine.url.database)).parent}
        readiness = Readiness(
            self._writer,
            self._engine,
            self._dispatcher.running,
            sandbox=self._walling.inspector,
            folders=folders,
            calls_limit=self.settings.calls_limit,
        )
        undo.push_async_callback(readiness.close)
        return readiness

    def _open_permissions(self) -> Permissions:
        configuration = RuleSource(_rules(self.settings.rules), self.settings.approval)
        agents = {name: RuleSource(_rules(one.rules), one.approval) for name, one in self.settings.agents.items()}
        return Permissions(configuration, agents, self._rules)

    def _open_asks(self, journal: Journal, sessions: Sessions, ids: Ids) -> PermissionStage:
        return PermissionStage(
            AskQueue(journal, self._engine, self._rules, ids=ids, clock=self._clock),
            self._permissions,
            DoomLoopGuard(self._engine),
            self._hooks,
            journal.cover,
            sessions,
            seconds=self.settings.ask_timeout,
            on_ask=self.settings.on_ask,
        )

    def _open_ways_out(self, book: SecretStore, undo: AsyncExitStack) -> None:
        """What leaves the service: requests and processes, both with secrets that only these see."""
        find = book.sendable
        self._outbound = CheckedOutbound(find, policy=self._policy, private_networks=self.settings.private_networks)
        self._walled = self._walling.open(find)
        undo.push_async_callback(self._walling.close)
        processes, places = self._walling.processes, self._workspaces.of
        walled, where = self._walled, lambda: self.lock.url
        reach = McpDeps(find=find, processes=processes, walled=walled, workspaces=places, url=where)
        parts = (self.settings, self._registry, self._writer)
        self._neighbourhood = McpSetup(*parts, clock=self._clock, redactor=self.redactor, reach=reach)

    async def _end_processes(self) -> None:
        """Those that go on between calls."""
        calls, servers = self._dispatcher, self._neighbourhood
        await asyncio.gather(calls.kernels.close(), calls.terminals.close(), servers.close())

    @property
    def _policy(self) -> NetworkPolicy | None:
        setting = self.settings.network_policy
        return None if setting is None else setting.policy()

    def _open_dispatcher(self, journal: Journal, book: SecretStore, ids: Ids, tracer: Tracer | None) -> Dispatcher:
        return Dispatcher(
            registry=self._registry,
            hooks=self._hooks,
            asks=self._asks,
            gates=Gates(self.settings.queue_timeout),
            journal=journal,
            ids=ids,
            workspaces=self._workspaces.of,
            tracer=tracer,
            outbound=self._outbound,
            searcher=Ripgrep(self._walling.processes),
            uploads=SpooledUploads(self.settings.data_dir.absolute() / "uploads", UPLOADS * self.settings.file_limit),
            walled=self._walled,
            terminals=self._open_terminals(journal),
            kernels=self._open_kernels(),
            neighbours=self._neighbourhood.resources,
            secret=book.value,
            capacity=Capacity(self.settings.calls_per_key, self.settings.calls_limit, self._clock),
        )

    def _open_kernels(self) -> Kernels:
        memory, idle = self.settings.sandbox.memory, self.settings.terminal_idle
        return Kernels(self._walled, self._walling.recipes, self._clock, memory=memory, idle=idle)

    def _open_terminals(self, journal: Journal) -> Terminals:
        limit, idle = self.settings.terminals_limit, self.settings.terminal_idle
        return Terminals(self._walled, journal, self._hub, self._clock, limit=limit, idle=idle)

    def _open_hooks(self, book: SecretStore) -> Hooks:
        processes, outbound = self._walling.processes, self._outbound
        loaded = load_hooks(self.settings, book, processes=processes, outbound=outbound, clock=self._clock)
        return Hooks([*self._given_hooks, *loaded], self._clock)

    async def _open_sessions(self) -> Sessions:
        self._workspaces.know(await stored_sessions.workspaces(self._engine, self._workspaces.made))
        return Sessions(self._engine, self._writer, self._clock, self._rules, self._workspaces.home)

    def _open_mcp_server(self, sessions: Sessions, listing: Listing, undo: AsyncExitStack) -> McpServerApp:
        mcp_server = McpServerApp(
            dispatcher=self._dispatcher,
            sessions=sessions,
            listing=listing,
            asks=self._asks.desk,
            hub=self._hub,
            engine=self._engine,
            change_feed=self._neighbourhood.bulletin,
            names=self.settings.mcp.names,
            sealer=self._vault,
        )
        undo.push_async_callback(mcp_server.close)
        return mcp_server

    def _open_listing(self) -> Listing:
        redefine = self._hooks.definition
        return Listing(self._registry, self._permissions, self.redactor, rank=rank, redefine=redefine)

    async def _open_tools(self, keyring: Keyring) -> RuntimeTools:
        """Tools from outside: those of files first, so that none registered over HTTP takes their names."""
        parts = (self._registry, self._writer, self._clock, self.redactor)
        self.files = FileTools(*parts, load=partial(load_tools, self.settings), principals=lambda: keyring.principals)
        book = RuntimeTools(
            *parts, makers=MAKERS, importer=ApiImporter(self._outbound), principals=lambda: keyring.principals
        )
        require_tools_dir(self.settings)
        await self.files.load()
        await book.load(self._engine)
        return book

    def _open_retention(self) -> Retention:
        limits = Limits(self.settings.retention_days, self.settings.retention_bytes)
        return Retention(self._engine, self._writer, self._hub, self._clock, limits)

    def _open_workspaces(self, data_dir: Path) -> Workspaces:
        extras = open_extras(((one.path, one.access) for one in self.settings.extra_roots), data_dir)
        around = RootSet(extras, Root(data_dir))
        folder = self.settings.workspace or make_workspace(data_dir / HOME_FOLDER, self._owner)
        return Workspaces(LocalWorkspace(folder, around=around), data_dir, self.settings.workspace_roots, self._owner)

    async def _open_book(self) -> SecretStore:
        """The stored secrets and the configured ones, which are read now and never kept."""
        configured = [setting.secret(name) for name, setting in self.settings.secrets.items()]
        stored = await stored_secrets.open_all(self._engine, self._vault)
        return SecretStore(self._writer, self._vault, self._clock, self.redactor, stored=stored, configured=configured)

    async def _open_keyring(self, data_dir: Path, ids: Ids) -> Keyring:
        """The stored keys and the admin's: the configured one, or the one in the key file. Revoked, it stays so."""
        configured = self.settings.api_key
        token = configured.get_secret_value() if configured else admin_key.read_or_create(data_dir)
        self.redactor.keep(token)
        is_configured = configured is not None
        return await principals.open_keyring(self._engine, self._writer, ids, token, is_configured=is_configured)


def _rules(settings: Iterable[RuleSetting]) -> tuple[Rule, ...]:
    return tuple(setting.rule() for setting in settings)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
