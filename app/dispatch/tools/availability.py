"""Probes: what a tool's `init` said last. A tool without one is always ready."""

import asyncio
import logging
from collections.abc import Iterable

from app.core.tools import Audience, Ready, Tool

log = logging.getLogger(__name__)

SECONDS = 10.0
MAX_ANSWERS = 4096
ANYBODY = Audience()
READY = Ready()

Asked = tuple[str | None, str, Audience]
"""Whose tool, its name, and for whom it was asked."""


class ToolAvailability:
    """Answers are kept until somebody asks anew; a question under way is shared by all who ask it."""

    def __init__(self) -> None:
        self._answers: dict[Asked, tuple[object, Ready]] = {}
        self._under_way: dict[Asked, asyncio.Task[Ready]] = {}

    def known(self, tool: Tool, audience: Audience = ANYBODY) -> Ready | None:
        """What is known without asking."""
        if tool.init is None:
            return READY
        init, answer = self._answers.get((tool.owner, tool.name, audience), (None, None))
        return answer if init is tool.init else None  # a tool in the place of another is another

    def is_ready(self, tool: Tool) -> bool:
        """Whether it is known that the tool can be used."""
        return tool.init is None or ((known := self.known(tool)) is not None and known.reason is None)

    async def require(self, tool: Tool) -> None:
        """Come back only when the tool can be used; one that could not be is asked again."""
        if self.is_ready(tool):
            return
        answer = await self.ask(tool)
        if answer.reason is not None:
            raise answer.error(f"{tool.name} cannot be used now: {answer.reason}")

    async def ask(self, tool: Tool, audience: Audience = ANYBODY) -> Ready:
        """Ask the tool itself, in its own time of ten seconds at most."""
        if tool.init is None:
            return READY
        asked = (tool.owner, tool.name, audience)
        if asked not in self._under_way:
            self._under_way[asked] = asyncio.create_task(self._probe(tool, audience, asked))
        return await asyncio.shield(self._under_way[asked])

    async def ask_all(self, tools: Iterable[Tool]) -> None:
        await asyncio.gather(*(self.ask(tool) for tool in tools))

    async def close(self) -> None:
        """Nobody is asked any more."""
        left = list(self._under_way.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _probe(self, tool: Tool, audience: Audience, asked: Asked) -> Ready:
        assert tool.init is not None, "only such are asked"
        try:
            async with asyncio.timeout(SECONDS) as clock:
                answer = await tool.init(audience)
        except Exception as error:
            log.warning("%s cannot say whether it can be used", tool.name, exc_info=True)
            is_late = isinstance(error, TimeoutError) and clock.expired()
            late = f"It did not say within {SECONDS:g} s whether it can be used."
            answer = Ready(reason=late if is_late else f"{type(error).__name__}: {error}")
        finally:
            del self._under_way[asked]
        self._answers.pop(asked, None)
        self._answers[asked] = (tool.init, answer)
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return answer
