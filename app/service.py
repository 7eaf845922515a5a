"""The composition root: opens every part of a running service in order, and closes them in reverse."""

import asyncio
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from app import __version__
from app.api.auth import Services
from app.api.http.sse import StreamSlots
from app.api.readiness import Readiness
from app.config import RuleSetting, Settings
from app.core.custom_tools import Maker
from app.core.errors import Misconfigured
from app.core.hooks import Hook
from app.core.llm_models import SHELL_TOOLS, offers_shell
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
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.events.hub import EventHub
from app.dispatch.gate import Gates
from app.dispatch.hooks import Hooks
from app.dispatch.journal import Journal
from app.dispatch.live_calls import Capacity
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
from app.dispatch.tool_context import ToolResources
from app.dispatch.tools.file_tools import FileTools
from app.dispatch.tools.listing import Listing
from app.dispatch.tools.registry import Registry
from app.dispatch.tools.runtime_tools import RuntimeTools
from app.dispatch.uploads import restore_uploads
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
from app.store.vault import Vault
from app.store.writer import Writer
from app.text.bm25 import rank

DISABLED = "The operator has switched off the tools that run commands."


def configure_shell_tools(tools: Iterable[Tool], settings: Settings) -> list[Tool]:
    """Apply the operator's settings to the shell tools: which ones models are offered, and the silence timeout.

    A shell tool that a model is not offered can still be called by its name, unless shell tools are disabled.
    """
    return [_configure_shell_tool(tool, settings) if tool.name in SHELL_TOOLS else tool for tool in tools]


def _configure_shell_tool(tool: Tool, settings: Settings) -> Tool:
    def suits(audience: Audience) -> bool:
        return offers_shell(settings.shell, audience.model, tool.name)

    async def refuse(audience: Audience) -> Ready:
        return Ready(reason=DISABLED)

    async def run(args: Any, ctx: Context) -> Result:
        ctx.extra["silence"] = settings.silence_timeout
        return await tool.run(args, ctx)

    if settings.shell == "disabled":
        return replace(tool, suits=suits, init=refuse)
    return replace(tool, suits=suits, run=run if settings.silence_timeout else tool.run)


MAX_THREADS = 32
"""Files are read and written in threads. With asyncio's default number, one session would block another."""

MAKERS: dict[str, Maker] = {"http": http_tools.make, "client": client_tools.make}
"""Builds tools of definitions, by their kind."""
MAX_UPLOADS = 16
"""How many uploads of the largest size fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The database: readers, the writer, the events of its commits, and what is encrypted in it."""

    engine: AsyncEngine
    writer: Writer
    hub: EventHub
    vault: Vault
    secrets: SecretStore
    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The dispatcher and its parts that routes use too."""

    dispatcher: Dispatcher
    journal: Journal
    hooks: Hooks
    rules: RuleStore
    permissions: Permissions
    asks: AskQueue
    sessions: Sessions
    stats: CallStats
    outbound: CheckedOutbound


class Service:
    """A running service, from the lock on its data directory to the calls under way."""

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
        self._data_dir, self._tool_owner = settings.data_dir.absolute(), tool_owner(settings.sandbox.uid)
        self._clock = clock or SystemClock()
        self._sandbox = SandboxSetup(settings, self._data_dir, self._clock)
        self._registry = Registry(self._sandbox.offered(tool) for tool in configure_shell_tools(tools, settings))
        self._hooks = tuple(hooks)
        self._is_drained = False

    async def open(self) -> Services:
        """Lock, migrate, load, recover: after this the service takes calls. A failure closes what was opened."""
        async with AsyncExitStack() as stack:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_THREADS, "toolcrib"))
            self.lock = self._lock_data_dir(stack)
            workspaces = self._open_workspaces(stack)
            storage = await self._open_storage(stack)
            pipeline = await self._open_pipeline(stack, storage, workspaces)
            services = await self._open_surfaces(stack, storage, pipeline, workspaces)
            await self._recover(stack, storage, pipeline)
            self._stack = stack.pop_all()
        return services

    async def drain(self) -> None:
        """Let calls finish within the grace period, record those that did not, end the event streams."""
        if not self._is_drained:
            self._is_drained = True
            await self._dispatcher.live_calls.drain(self.settings.grace)
            await self._end_processes()
            self._hub.close()

    def schedule_reload(self) -> None:
        """Read tools and MCP servers from their files again."""
        self.files.schedule_reload()
        self._mcp.schedule_reload()

    def interrupt_now(self) -> None:
        """End the grace period: interrupt every call."""
        self._dispatcher.live_calls.interrupt_all()

    async def close(self) -> None:
        await self.drain()
        await self._stack.aclose()

    def _lock_data_dir(self, stack: AsyncExitStack) -> DataDirLock:
        make_data_dir(self._data_dir, self._tool_owner, (HOME_FOLDER, OWN_FOLDER, vault.FILE_NAME))
        lock = DataDirLock(self._data_dir)
        stack.callback(lock.release)
        return lock

    def _open_workspaces(self, stack: AsyncExitStack) -> Workspaces:
        settings, data_dir = self.settings, self._data_dir
        extras = open_extras(((one.path, one.access) for one in settings.extra_roots), data_dir)
        folder = settings.workspace or make_workspace(data_dir / HOME_FOLDER, self._tool_owner)
        default = LocalWorkspace(folder, around=RootSet(extras, Root(data_dir)))
        workspaces = Workspaces(default, data_dir, settings.workspace_roots, self._tool_owner)
        stack.callback(workspaces.close)
        return workspaces

    async def _open_storage(self, stack: AsyncExitStack) -> Storage:
        settings = self.settings
        url = db.database_url(self._data_dir, settings.database_url)
        await asyncio.to_thread(migrate.upgrade, url)
        engine = db.open_readers(url)
        stack.push_async_callback(engine.dispose)
        self._hub = EventHub(await stored_events.last_seq(engine), await floor_of(engine), settings.heartbeat)
        writer = Writer(url, self._hub.publish)
        stack.push_async_callback(writer.close)
        opened_vault = await stored_secrets.open_vault(engine, self._data_dir)
        secret_store = SecretStore(
            writer,
            opened_vault,
            self._clock,
            self.redactor,
            stored=await stored_secrets.open_all(engine, opened_vault),
            configured=[setting.secret(name) for name, setting in settings.secrets.items()],
        )
        ids = Ids(self._clock, time_of(await stored_calls.newest_id(engine) or ""))
        return Storage(engine=engine, writer=writer, hub=self._hub, vault=opened_vault, secrets=secret_store, ids=ids)

    async def _open_pipeline(self, stack: AsyncExitStack, storage: Storage, workspaces: Workspaces) -> Pipeline:
        settings, engine, clock = self.settings, storage.engine, self._clock
        redactor = CallRedactor(self.redactor, storage.vault)
        stats = CallStats(self._registry)
        journal = self._open_journal(storage, redactor, stats)
        outbound = CheckedOutbound(
            storage.secrets.sendable, policy=self._network_policy, private_networks=settings.private_networks
        )
        resources = self._open_tool_resources(stack, storage, journal, redactor, outbound, workspaces)
        hooks = self._open_hooks(storage, outbound)
        rules = RuleStore(storage.writer, await stored_rules.load_all(engine))
        permissions = self._open_permissions(rules)
        workspaces.know(await stored_sessions.workspaces(engine, workspaces.made))
        sessions = Sessions(engine, storage.writer, clock, rules, workspaces.home)
        asks = AskQueue(journal, redactor, engine, rules, ids=storage.ids, clock=clock)
        permission = PermissionStage(
            asks=asks,
            permissions=permissions,
            journal=journal,
            doom_loops=DoomLoopGuard(engine),
            hooks=hooks,
            redactor=redactor,
            sessions=sessions,
            seconds=settings.ask_timeout,
            on_ask=settings.on_ask,
        )
        self._dispatcher = Dispatcher(
            registry=self._registry,
            hooks=hooks,
            permission=permission,
            gates=Gates(settings.queue_timeout),
            journal=journal,
            redactor=redactor,
            ids=storage.ids,
            workspaces=workspaces.of,
            capacity=Capacity(settings.calls_per_key, settings.calls_limit, clock),
            resources=resources,
            tracer=self._open_tracer(stack),
        )
        sessions.on_delete.append(self._dispatcher.end_session)
        stack.push_async_callback(self._end_processes)
        return Pipeline(
            dispatcher=self._dispatcher,
            journal=journal,
            hooks=hooks,
            rules=rules,
            permissions=permissions,
            asks=asks,
            sessions=sessions,
            stats=stats,
            outbound=outbound,
        )

    def _open_journal(self, storage: Storage, redactor: CallRedactor, stats: CallStats) -> Journal:
        return Journal(
            storage.writer,
            storage.engine,
            storage.hub,
            clock=self._clock,
            redactor=redactor,
            stats=stats,
            owner=secrets.token_hex(8),
            output_limit=self.settings.output_limit,
            root_path=self.settings.root_path,
        )

    def _open_tool_resources(
        self,
        stack: AsyncExitStack,
        storage: Storage,
        journal: Journal,
        redactor: CallRedactor,
        outbound: CheckedOutbound,
        workspaces: Workspaces,
    ) -> ToolResources:
        """The network, processes and MCP servers that tools use."""
        settings, clock = self.settings, self._clock
        find = storage.secrets.sendable
        processes = self._sandbox.open(find)
        stack.push_async_callback(self._sandbox.close)
        self._mcp = McpSetup(
            settings,
            self._registry,
            storage.writer,
            clock=clock,
            redactor=self.redactor,
            deps=McpDeps(
                find=find,
                processes=self._sandbox.processes,
                sandboxed=processes,
                workspaces=workspaces.of,
                url=lambda: self.lock.url,
            ),
        )
        return ToolResources(
            outbound=outbound,
            searcher=Ripgrep(self._sandbox.processes),
            uploads=SpooledUploads(self._data_dir / "uploads", MAX_UPLOADS * settings.file_limit),
            processes=processes,
            terminals=Terminals(
                processes,
                journal,
                redactor,
                storage.hub,
                clock,
                limit=settings.terminals_limit,
                idle=settings.terminal_idle,
            ),
            kernels=Kernels(
                processes,
                self._sandbox.recipes,
                clock,
                memory=settings.sandbox.memory,
                idle=settings.terminal_idle,
            ),
            mcp_resources=self._mcp.resources,
            secret=storage.secrets.value,
        )

    def _open_hooks(self, storage: Storage, outbound: CheckedOutbound) -> Hooks:
        processes = self._sandbox.processes
        loaded = load_hooks(self.settings, storage.secrets, processes=processes, outbound=outbound, clock=self._clock)
        return Hooks([*self._hooks, *loaded], self._clock)

    def _open_permissions(self, rules: RuleStore) -> Permissions:
        settings = self.settings
        configuration = RuleSource(_rules(settings.rules), settings.approval)
        agents = {name: RuleSource(_rules(one.rules), one.approval) for name, one in settings.agents.items()}
        return Permissions(configuration, agents, rules)

    def _open_tracer(self, stack: AsyncExitStack) -> Tracer | None:
        if self.settings.traces_endpoint is None:
            return None
        try:
            from app.net.otel import open_tracing
        except ModuleNotFoundError:
            raise Misconfigured(
                "traces_endpoint is set, but the trace exporter is not installed: pip install 'toolcrib[otel]'."
            ) from None
        tracing = open_tracing(self.settings.traces_endpoint, __version__)
        stack.push_async_callback(tracing.close)
        return tracing

    async def _open_surfaces(
        self, stack: AsyncExitStack, storage: Storage, pipeline: Pipeline, workspaces: Workspaces
    ) -> Services:
        """What clients reach: keys, tools from outside, MCP servers, Toolcrib's own MCP server, readiness."""
        settings, dispatcher, sessions = self.settings, pipeline.dispatcher, pipeline.sessions
        keyring = await self._open_keyring(storage)
        tools = await self._open_tools(storage, keyring, pipeline.outbound)
        stack.push_async_callback(self.files.close)
        oauth = await self._mcp.load(storage.engine, storage.vault, keyring, sessions, dispatcher)
        listing = Listing(
            self._registry, pipeline.permissions, self.redactor, rank=rank, redefine=pipeline.hooks.definition
        )
        mcp = McpServerApp(
            dispatcher=dispatcher,
            sessions=sessions,
            listing=listing,
            asks=pipeline.asks,
            hub=storage.hub,
            engine=storage.engine,
            change_feed=self._mcp.changes,
            names=settings.mcp.names,
            sealer=storage.vault,
        )
        stack.push_async_callback(mcp.close)
        readiness = Readiness(
            storage.writer,
            storage.engine,
            dispatcher.live_calls,
            sandbox=self._sandbox.inspector,
            folders={self._data_dir, Path(str(storage.engine.url.database)).parent},
            calls_limit=settings.calls_limit,
        )
        stack.push_async_callback(readiness.close)
        return Services(
            dispatcher=dispatcher,
            engine=storage.engine,
            writer=storage.writer,
            hub=storage.hub,
            keyring=keyring,
            ids=storage.ids,
            clock=self._clock,
            mcp=mcp,
            runtime_tools=tools,
            file_tools=self.files,
            listing=listing,
            stream_slots=StreamSlots(settings.streams_per_key),
            secrets=storage.secrets,
            call_stats=pipeline.stats,
            readiness=readiness,
            asks=pipeline.asks,
            rules=pipeline.rules,
            sessions=sessions,
            workspaces=workspaces,
            sandbox=self._sandbox.inspector,
            network_policy=self._network_policy,
            servers=self._mcp.servers,
            oauth=oauth,
            runs=Runs(dispatcher, storage.engine, storage.writer, self.redactor),
            stdio_over_rest=settings.mcp.stdio_over_rest,
        )

    async def _open_keyring(self, storage: Storage) -> Keyring:
        """The stored keys and the admin key: the configured one, or the one in the key file. Revoked, it stays so."""
        configured = self.settings.api_key
        token = configured.get_secret_value() if configured else admin_key.read_or_create(self._data_dir)
        self.redactor.add_own_key(token)
        return await principals.open_keyring(
            storage.engine, storage.writer, storage.ids, token, is_configured=configured is not None
        )

    async def _open_tools(self, storage: Storage, keyring: Keyring, outbound: CheckedOutbound) -> RuntimeTools:
        """Tools from files first, so that no tool registered over HTTP takes their names."""
        self.files = FileTools(
            self._registry,
            storage.writer,
            self._clock,
            self.redactor,
            load=partial(load_tools, self.settings),
            principals=lambda: keyring.principals,
        )
        runtime_tools = RuntimeTools(
            self._registry,
            storage.writer,
            self._clock,
            self.redactor,
            makers=MAKERS,
            importer=ApiImporter(outbound),
            principals=lambda: keyring.principals,
        )
        require_tools_dir(self.settings)
        await self.files.load()
        await runtime_tools.load(storage.engine)
        return runtime_tools

    async def _recover(self, stack: AsyncExitStack, storage: Storage, pipeline: Pipeline) -> None:
        """End or resume the calls of an earlier start, then begin the background work."""
        registry, dispatcher = self._registry, pipeline.dispatcher
        await self._sandbox.begin(registry.all(None))
        self._mcp.servers.start()
        keys = {key.id: key for key in await principals.all_keys(storage.engine)}
        await recover(storage.engine, pipeline.journal, dispatcher, keys)
        restore_uploads(dispatcher.resources.uploads, dispatcher.live_calls)
        limits = Limits(self.settings.retention_days, self.settings.retention_bytes)
        retention = Retention(storage.engine, storage.writer, storage.hub, self._clock, limits)
        stack.push_async_callback(_stop, asyncio.create_task(retention.run()))
        stack.push_async_callback(registry.availability.close)
        stack.push_async_callback(_stop, asyncio.create_task(registry.availability.ask_all(registry.all(None))))

    async def _end_processes(self) -> None:
        """End interpreters, terminals and MCP servers, which outlive calls."""
        resources = self._dispatcher.resources
        await asyncio.gather(resources.kernels.close(), resources.terminals.close(), self._mcp.close())

    @property
    def _network_policy(self) -> NetworkPolicy | None:
        setting = self.settings.network_policy
        return None if setting is None else setting.policy()


def _rules(settings: Iterable[RuleSetting]) -> tuple[Rule, ...]:
    return tuple(setting.rule() for setting in settings)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
