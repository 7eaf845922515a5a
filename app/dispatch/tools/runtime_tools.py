"""Tools registered at run time: stored with their event, and in the registry after the commit."""

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
MODEL_TEXT = frozenset({"title", "description", "parameters"})
"""Texts that a model reads: what looks like a secret in them is redacted; in other fields it is refused."""

_definitions: TypeAdapter[AnyDefinition] = TypeAdapter(AnyDefinition)


class InvalidDefinition(ValueError):
    """A tool cannot be made of this definition; says why."""


class DefinedTool(NamedTuple):
    """A tool, and its definition as it is stored."""

    tool: Tool
    stored: StoredTool


@dataclass(slots=True)
class ToolsChanged:
    """Which tools changed, by name."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def publish(self, batch: Batch, principals: Iterable[str], at: int) -> None:
        """An event for each principal whose tools these are."""
        data = dumps(self).decode()
        for principal in sorted(principals):
            batch.publish(Event(0, EventType.TOOLS_CHANGED, None, principal, DEFAULT_SESSION, at, data))


class RuntimeTools:
    """All registered tools. `principals` returns those that get the event of a change to shared tools."""

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
        self._registered: set[tuple[str | None, str]] = set()

    async def load(self, engine: AsyncEngine) -> None:
        """Make every stored tool again. One that cannot be made any more is logged and skipped."""
        for stored, made in await asyncio.to_thread(self._make_stored, await tools.load_all(engine)):
            try:
                if isinstance(made, Exception):
                    raise made
                self._add_to_registry(made)
            except Exception as error:  # noqa: BLE001 - whatever it is, the service starts
                owner = stored.owner or "all principals"
                log.warning("the registered tool %s of %s cannot be used: %s", stored.name, owner, error)

    def holds(self, name: str, owner: str | None) -> bool:
        """Whether this is a registered tool of this owner."""
        return (owner, name) in self._registered

    async def register(self, definition: AnyDefinition, owner: str | None, *, replace: bool) -> tuple[Tool, bool]:
        """Store a tool; returns it and whether it is new. Raises `InvalidDefinition` or `NameTaken`."""
        made = self._make(definition, owner)
        self._check(made, replace, 1)
        done = await self._store([made], owner, replace)
        if not done:
            raise NameTaken(made.tool.name)
        return made.tool, bool(done.added)

    async def import_api(
        self, request: OpenApiImport, principal: str, owner: str | None, *, replace: bool
    ) -> tuple[list[Tool], list[Skipped]]:
        """Make tools of an API's operations. Operations that cannot become tools are listed as skipped."""
        try:
            definitions, skipped = await self._importer(request, principal)
        except (ValueError, CallError) as error:
            raise InvalidDefinition(str(error)) from None
        fitting: dict[str, DefinedTool] = {}
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
        done = await self._store(fitting.values(), owner, replace)
        stored = {*done.added, *done.changed}
        skipped += [Skipped(name, str(NameTaken(name))) for name in fitting if name not in stored]
        return [made.tool for name, made in fitting.items() if name in stored], skipped

    async def remove(self, name: str, owner: str | None) -> bool:
        """Remove a tool; returns whether it existed."""
        at, recipients = self._clock.now(), self._recipients(owner)

        def delete(batch: Batch) -> bool:
            if not tools.remove(batch, name, owner):
                return False
            ToolsChanged(removed=[name]).publish(batch, recipients, at)
            return True

        def forget(_: bool) -> None:
            if self.holds(name, owner):
                self._registered.remove((owner, name))
                self._registry.remove(name, owner)

        return await self._writer.commit_and_apply(delete, forget)

    async def _store(self, fitting: Iterable[DefinedTool], owner: str | None, replace: bool) -> ToolsChanged:
        """Store all of them in one commit with their event. The store decides whether a name is free."""
        made = list(fitting)
        at, recipients = self._clock.now(), self._recipients(owner)

        def store(batch: Batch) -> ToolsChanged:
            done = ToolsChanged()
            for one in made:
                if tools.add(batch, one.stored, at):
                    done.added.append(one.tool.name)
                elif replace:
                    tools.put(batch, one.stored, at)
                    done.changed.append(one.tool.name)
            if done:
                done.publish(batch, recipients, at)
            return done

        def register(done: ToolsChanged) -> None:
            names = {*done.added, *done.changed}
            for one in made:
                if one.tool.name in names:
                    try:
                        self._add_to_registry(one)
                    except NameTaken as error:  # by a file that was loaded meanwhile
                        log.warning("a registered tool cannot be used: %s", error)

        return await self._writer.commit_and_apply(store, register)

    def _add_to_registry(self, made: DefinedTool) -> None:
        """Add it to the registry, but never replace a tool of another source."""
        tool = made.tool
        if tool.owner is not None or self.holds(tool.name, None):
            self._registry.replace(tool)
        else:
            self._registry.add(tool)
        self._registered.add((tool.owner, tool.name))

    def _make_stored(self, rows: list[StoredTool]) -> list[tuple[StoredTool, DefinedTool | Exception]]:
        """In a thread, because schemas take time to compile."""
        made: list[tuple[StoredTool, DefinedTool | Exception]] = []
        for row in rows:
            try:
                made.append((row, self._make(_definitions.validate_json(row.definition), row.owner)))
            except Exception as error:  # noqa: BLE001 - the caller logs it
                made.append((row, error))
        return made

    def _make_all(
        self, definitions: Iterable[AnyDefinition], owner: str | None
    ) -> list[tuple[str, DefinedTool | InvalidDefinition]]:
        """In a thread too."""
        made: list[tuple[str, DefinedTool | InvalidDefinition]] = []
        for definition in definitions:
            try:
                made.append((definition.name, self._make(definition, owner)))
            except InvalidDefinition as error:
                made.append((definition.name, error))
        return made

    def _make(self, definition: AnyDefinition, owner: str | None) -> DefinedTool:
        definition = self._without_secrets(definition)
        text = definition.model_dump_json()
        if len(text) > MAX_DEFINITION:
            raise InvalidDefinition(f"The definition of {definition.name} is larger than {MAX_DEFINITION:,} bytes.")
        if definition.kind not in self._makers:
            raise InvalidDefinition(f"This service has no tools of kind {definition.kind}.")
        try:
            tool = self._makers[definition.kind](definition, owner)
        except (ValueError, CallError) as error:
            raise InvalidDefinition(str(error)) from None
        return DefinedTool(tool, StoredTool(owner, definition.name, definition.kind, text))

    def _check(self, made: DefinedTool, replace: bool, count: int) -> None:
        name, owner = made.tool.name, made.tool.owner
        is_new = not self.holds(name, owner)
        self._registry.check(made.tool, instead=replace and not is_new)
        if is_new and sum(held[0] == owner for held in self._registered) + count > MAX_OWNED:
            raise InvalidDefinition(f"No more than {MAX_OWNED:,} tools are stored for one owner; remove one first.")

    def _without_secrets(self, definition: AnyDefinition) -> AnyDefinition:
        """The definition as it may be stored and shown."""
        text = definition.model_dump_json()
        cleaned = self._redactor.json(text)
        if cleaned == text:
            return definition
        original, shown = json.loads(text), json.loads(cleaned)
        if any(shown[name] != original[name] for name in original if name not in MODEL_TEXT):
            raise InvalidDefinition(
                f"The definition of {definition.name} contains what looks like a secret. Store it with "
                'PUT /v1/secrets/{name}, and name it here: {"secret": name}.'
            )
        return _definitions.validate_python(shown)

    def _recipients(self, owner: str | None) -> list[str]:
        return list(self._principals()) if owner is None else [owner]
