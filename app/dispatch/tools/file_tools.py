"""Tools of files: read at start and again when asked. Running calls go on with the tool they have."""

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
    """What files gave to the registry. `load` executes them; that takes time, so it is done in a thread."""

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
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Read them for the first time; nobody is there yet who would have to be told."""
        self._shelve(await asyncio.to_thread(self._load))

    async def reload(self) -> tuple[list[str], list[Unloaded]]:
        """Read them anew, and ask every tool again whether it can be used. What is gone from the files is gone."""
        async with self._turn:
            before = self._tools
            failed = self._shelve(await asyncio.to_thread(self._load))
            if changed := _difference(before, self._tools):
                told, at = list(self._principals()), self._clock.now()
                await self._writer.submit(lambda batch: changed.tell(batch, told, at))
        await self._registry.availability.ask_all(self._registry.all(None))
        return sorted(self._tools), failed

    def schedule_reload(self) -> None:
        """Read them anew without anybody waiting for it; the log tells what came of it."""
        task = asyncio.create_task(self._reload_and_say())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _reload_and_say(self) -> None:
        try:
            names, failed = await self.reload()
        except Exception:
            log.exception("the tools of files could not be read anew")
        else:
            log.info("the tools of files were read anew: %s; %d failed", ", ".join(names) or "none", len(failed))

    def _shelve(self, loaded: Loaded) -> list[Unloaded]:
        """Out with the old, in with the new. A name that another tool has costs only the tool that wants it."""
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
