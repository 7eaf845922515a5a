"""Tools from files: loaded at start and on reload. Running calls continue with the tool they have."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from app.core.custom_tools import Loaded, Unloaded
from app.core.ports import Clock
from app.core.redaction import Redactor
from app.core.tools import Tool
from app.dispatch.tools.registry import NameTaken, Registry
from app.dispatch.tools.runtime_tools import ToolsChanged
from app.store.writer import Writer

log = logging.getLogger(__name__)


class FileTools:
    """The tools that files added to the registry. `load` executes the files in a thread, because that takes time."""

    def __init__(
        self,
        registry: Registry,
        writer: Writer,
        clock: Clock,
        redactor: Redactor,
        *,
        load: Callable[[], Loaded],
        principals: Callable[[], Iterable[str]],
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._clock = clock
        self._redactor = redactor
        self._load = load
        self._principals = principals
        self._tools: dict[str, Tool] = {}
        self._reloading = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Load them for the first time, without an event."""
        self._replace_tools(await asyncio.to_thread(self._load))

    async def reload(self) -> tuple[list[str], list[Unloaded]]:
        """Load them again and ask every tool whether it can be used. Missing ones are removed."""
        async with self._reloading:
            before = self._tools
            failed = self._replace_tools(await asyncio.to_thread(self._load))
            if changed := _difference(before, self._tools):
                recipients, at = list(self._principals()), self._clock.now()
                await self._writer.submit(lambda batch: changed.publish(batch, recipients, at))
        await self._registry.availability.ask_all(self._registry.all(None))
        return sorted(self._tools), failed

    def schedule_reload(self) -> None:
        """Load them again in the background; the result is logged."""
        task = asyncio.create_task(self._reload_and_log())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _reload_and_log(self) -> None:
        try:
            names, failed = await self.reload()
        except Exception:
            log.exception("the tools from files could not be loaded again")
        else:
            log.info("the tools from files were loaded again: %s; %d failed", ", ".join(names) or "none", len(failed))

    def _replace_tools(self, loaded: Loaded) -> list[Unloaded]:
        """Replace the old tools by the new ones. A tool whose name is taken is skipped."""
        for name in self._tools:
            self._registry.remove(name, None)
        self._tools = {}
        failed = list(loaded.failed)
        for file, tool in loaded.found:
            try:
                self._registry.add(tool)
            except NameTaken as error:
                failed.append(Unloaded(file, str(error)))
            else:
                self._tools[tool.name] = tool
        for file, reason in failed:
            log.warning("a tool of %s cannot be used: %s", file, reason)
        return [Unloaded(file, self._redactor.text(reason)) for file, reason in failed]


def _difference(before: dict[str, Tool], after: dict[str, Tool]) -> ToolsChanged:
    return ToolsChanged(
        added=sorted(after.keys() - before.keys()),
        removed=sorted(before.keys() - after.keys()),
        changed=sorted(name for name in after.keys() & before.keys() if after[name].view() != before[name].view()),
    )
