"""Tools that are registered at run time: kept with the event that tells of them, in the registry after the commit."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncEngine

from app.core.custom_tools import AnyDefinition, Importer, Maker, OpenApiImport, Skipped
from app.core.errors import CallError
from app.core.events import Event, EventType
from app.core.ports import Clock
from app.core.redaction import Redactor
from app.core.sessions import DEFAULT_SESSION
from app.core.tools import Tool
from app.core.util.json_codec import dumps
from app.dispatch.tools.registry import NameTaken, Registry
from app.store import tools
from app.store.tools import StoredTool
from app.store.writer import Batch, Writer

log = logging.getLogger(__name__)

MAX_OWNED = 1_000
MAX_DEFINITION = 256 * 1024
WORDS = frozenset({"title", "description", "parameters"})
"""What a model reads: where something in it looks like a secret, that is redacted; elsewhere it is refused."""

_definitions: TypeAdapter[AnyDefinition] = TypeAdapter(AnyDefinition)


class InvalidDefinition(ValueError):
    """A tool that cannot be made; the sentence says why."""


class Made(NamedTuple):
    """A tool, and the definition it was made of as it is kept."""

    tool: Tool
    kept: StoredTool


@dataclass(slots=True)
class ToolsChanged:
    """What became of tools, by name."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def tell(self, batch: Batch, principals: Iterable[str], at: int) -> None:
        """An event for each principal whose tools these are."""
        data = dumps(self).decode()
        for principal in sorted(principals):
            batch.publish(Event(0, EventType.TOOLS_CHANGED, None, principal, DEFAULT_SESSION, at, data))


class RuntimeTools:
    """All registered tools. `principals` says who there is to be told of a change that concerns everybody."""

    def __init__(
        self,
        registry: Registry,
        writer: Writer,
        clock: Clock,
        redactor: Redactor,
        *,
        makers: Mapping[str, Maker],
        importer: Importer,
        principals: Callable[[], Iterable[str]],
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._clock = clock
        self._redactor = redactor
        self._makers = makers
        self._importer = importer
        self._principals = principals
        self._held: set[tuple[str | None, str]] = set()

    async def load(self, engine: AsyncEngine) -> None:
        """Make every kept tool again. One that does not fit any more is reported, and costs only itself."""
        for kept, made in await asyncio.to_thread(self._make_again, await tools.load_all(engine)):
            try:
                if isinstance(made, Exception):
                    raise made
                self._shelve(made)
            except Exception as error:  # noqa: BLE001 - whatever it is, the service starts
                whose = kept.owner or "everybody"
                log.warning("the registered tool %s of %s cannot be used: %s", kept.name, whose, error)

    def holds(self, name: str, owner: str | None) -> bool:
        """Whether this is a registered tool of this owner."""
        return (owner, name) in self._held

    async def register(self, definition: AnyDefinition, owner: str | None, *, replace: bool) -> tuple[Tool, bool]:
        """Keep a tool; the answer says whether it is new. Raises `InvalidDefinition` or `NameTaken`."""
        made = self._make(definition, owner)
        self._check(made, replace, 1)
        done = await self._keep([made], owner, replace)
        if not done:
            raise NameTaken(made.tool.name)
        return made.tool, bool(done.added)

    async def import_api(
        self, asked: OpenApiImport, principal: str, owner: str | None, *, replace: bool
    ) -> tuple[list[Tool], list[Skipped]]:
        """Make tools of an API's operations. What cannot become one is skipped, and said."""
        try:
            definitions, skipped = await self._importer(asked, principal)
        except (ValueError, CallError) as error:
            raise InvalidDefinition(str(error)) from None
        fitting: dict[str, Made] = {}
        for name, made in await asyncio.to_thread(self._make_all, definitions, owner):
            try:
                if isinstance(made, InvalidDefinition):
                    raise made
                if name in fitting:
                    raise NameTaken(name)
                self._check(made, replace, len(fitting) + 1)
                fitting[name] = made
            except (InvalidDefinition, NameTaken) as error:
                skipped.append(Skipped(name, str(error)))
        done = await self._keep(fitting.values(), owner, replace)
        kept = {*done.added, *done.changed}
        skipped += [Skipped(name, str(NameTaken(name))) for name in fitting if name not in kept]
        return [made.tool for name, made in fitting.items() if name in kept], skipped

    async def remove(self, name: str, owner: str | None) -> bool:
        """Forget a tool; the answer is whether it was there."""
        at, told = self._clock.now(), self._told(owner)

        def forget(batch: Batch) -> bool:
            if not tools.remove(batch, name, owner):
                return False
            ToolsChanged(removed=[name]).tell(batch, told, at)
            return True

        change = self._writer.submit(forget)
        change.add_done_callback(lambda done: self._removed(done, name, owner))
        return await asyncio.shield(change)

    async def _keep(self, fitting: Iterable[Made], owner: str | None, replace: bool) -> ToolsChanged:
        """All of them in one commit with their event. The store has the last word on whether a name is free."""
        made = list(fitting)
        at, told = self._clock.now(), self._told(owner)

        def keep(batch: Batch) -> ToolsChanged:
            done = ToolsChanged()
            for one in made:
                if tools.add(batch, one.kept, at):
                    done.added.append(one.tool.name)
                elif replace:
                    tools.put(batch, one.kept, at)
                    done.changed.append(one.tool.name)
            if done:
                done.tell(batch, told, at)
            return done

        change = self._writer.submit(keep)
        change.add_done_callback(lambda done: self._kept(done, made))
        # Shielded, because a change that was handed over is committed even if nobody waits for it any more.
        return await asyncio.shield(change)

    def _kept(self, done: "asyncio.Future[ToolsChanged]", made: list[Made]) -> None:
        """Futures are resolved in the order of their commits, so the registry changes in that order too."""
        if done.cancelled() or done.exception():
            return
        names = {*done.result().added, *done.result().changed}
        for one in made:
            if one.tool.name in names:
                try:
                    self._shelve(one)
                except NameTaken as error:  # by a file that was read in this very moment
                    log.warning("a registered tool cannot be used: %s", error)

    def _removed(self, done: "asyncio.Future[bool]", name: str, owner: str | None) -> None:
        if not (done.cancelled() or done.exception()) and self.holds(name, owner):
            self._held.remove((owner, name))
            self._registry.remove(name, owner)

    def _shelve(self, made: Made) -> None:
        """Into the registry, but never in place of what somebody else put there."""
        tool = made.tool
        if tool.owner is not None or self.holds(tool.name, None):
            self._registry.replace(tool)
        else:
            self._registry.add(tool)
        self._held.add((tool.owner, tool.name))

    def _make_again(self, rows: list[StoredTool]) -> list[tuple[StoredTool, Made | Exception]]:
        """In a thread, because schemas take time to compile."""
        made: list[tuple[StoredTool, Made | Exception]] = []
        for kept in rows:
            try:
                made.append((kept, self._make(_definitions.validate_json(kept.definition), kept.owner)))
            except Exception as error:  # noqa: BLE001 - it is told by whoever wanted it
                made.append((kept, error))
        return made

    def _make_all(
        self, definitions: Iterable[AnyDefinition], owner: str | None
    ) -> list[tuple[str, Made | InvalidDefinition]]:
        """In a thread too."""
        made: list[tuple[str, Made | InvalidDefinition]] = []
        for definition in definitions:
            try:
                made.append((definition.name, self._make(definition, owner)))
            except InvalidDefinition as error:
                made.append((definition.name, error))
        return made

    def _make(self, given: AnyDefinition, owner: str | None) -> Made:
        definition = self._without_secrets(given)
        text = definition.model_dump_json()
        if len(text) > MAX_DEFINITION:
            raise InvalidDefinition(f"The definition of {definition.name} is larger than {MAX_DEFINITION:,} bytes.")
        if definition.kind not in self._makers:
            raise InvalidDefinition(f"This service has no tools of kind {definition.kind}.")
        try:
            tool = self._makers[definition.kind](definition, owner)
        except (ValueError, CallError) as error:
            raise InvalidDefinition(str(error)) from None
        return Made(tool, StoredTool(owner, definition.name, definition.kind, text))

    def _check(self, made: Made, replace: bool, count: int) -> None:
        name, owner = made.tool.name, made.tool.owner
        is_new = not self.holds(name, owner)
        self._registry.check(made.tool, instead=replace and not is_new)
        if is_new and sum(held[0] == owner for held in self._held) + count > MAX_OWNED:
            raise InvalidDefinition(f"No more than {MAX_OWNED:,} tools are kept for one owner; remove one first.")

    def _without_secrets(self, definition: AnyDefinition) -> AnyDefinition:
        """A definition as it may be kept and shown."""
        text = definition.model_dump_json()
        cleaned = self._redactor.json(text)
        if cleaned == text:
            return definition
        given, shown = json.loads(text), json.loads(cleaned)
        if any(shown[name] != given[name] for name in given if name not in WORDS):
            raise InvalidDefinition(
                f"The definition of {definition.name} holds what looks like a secret. Keep that with "
                'PUT /v1/secrets/{name}, and name it here: {"secret": name}.'
            )
        return _definitions.validate_python(shown)

    def _told(self, owner: str | None) -> list[str]:
        return list(self._principals()) if owner is None else [owner]
