"""Whether tools can be used: the last answer of each tool's `init`. A tool without one is always available."""

import asyncio
import logging
from collections.abc import Iterable

from app.core.tools import Audience, Ready, Tool

log = logging.getLogger(__name__)

INIT_SECONDS = 10.0
MAX_ANSWERS = 4096
ANY_AUDIENCE = Audience()
READY = Ready()

Question = tuple[str | None, str, Audience]
"""The tool's owner, its name, and the audience."""


class ToolAvailability:
    """Caches answers until `ask` is called again; callers that ask at the same time share one `init`."""

    def __init__(self) -> None:
        self._answers: dict[Question, tuple[object, Ready]] = {}
        self._under_way: dict[Question, asyncio.Task[Ready]] = {}

    def known(self, tool: Tool, audience: Audience = ANY_AUDIENCE) -> Ready | None:
        """The cached answer."""
        if tool.init is None:
            return READY
        init, answer = self._answers.get((tool.owner, tool.name, audience), (None, None))
        return answer if init is tool.init else None  # a tool that replaced another has another init

    def is_ready(self, tool: Tool) -> bool:
        """Whether it is known that the tool can be used."""
        return tool.init is None or ((known := self.known(tool)) is not None and known.reason is None)

    async def require(self, tool: Tool) -> None:
        """Raise the tool's error when it cannot be used; asks again when the cached answer was no."""
        if self.is_ready(tool):
            return
        answer = await self.ask(tool)
        if answer.reason is not None:
            raise answer.error(f"{tool.name} cannot be used now: {answer.reason}")

    async def ask(self, tool: Tool, audience: Audience = ANY_AUDIENCE) -> Ready:
        """Run the tool's `init`, for at most ten seconds."""
        if tool.init is None:
            return READY
        question = (tool.owner, tool.name, audience)
        if question not in self._under_way:
            self._under_way[question] = asyncio.create_task(self._probe(tool, audience, question))
        return await asyncio.shield(self._under_way[question])

    async def ask_all(self, tools: Iterable[Tool]) -> None:
        await asyncio.gather(*(self.ask(tool) for tool in tools))

    async def close(self) -> None:
        """Cancel every `init` under way."""
        left = list(self._under_way.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _probe(self, tool: Tool, audience: Audience, question: Question) -> Ready:
        assert tool.init is not None, "only tools with an init are asked"
        try:
            async with asyncio.timeout(INIT_SECONDS) as clock:
                answer = await tool.init(audience)
        except Exception as error:
            log.warning("%s cannot say whether it can be used", tool.name, exc_info=True)
            is_late = isinstance(error, TimeoutError) and clock.expired()
            late = f"It did not say within {INIT_SECONDS:g} s whether it can be used."
            answer = Ready(reason=late if is_late else f"{type(error).__name__}: {error}")
        finally:
            del self._under_way[question]
        self._answers.pop(question, None)
        self._answers[question] = (tool.init, answer)
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return answer
