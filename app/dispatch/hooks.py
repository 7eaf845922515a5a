"""Hooks: the operator's own say before and after a tool runs. None is configured so far; the line asks all the same."""

from collections.abc import Sequence
from typing import Any, Protocol

from app.core.calls import Call
from app.core.results import Result
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.core.tools import Tool


class Hook(Protocol):
    """`before` may change what goes in or raise `HookDenied`; `after` may change what comes out."""

    def matches(self, tool: str) -> bool: ...

    async def before(self, call: Call, payload: Any) -> Any: ...

    async def after(self, call: Call, result: Result) -> Result: ...


class Hooks:
    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def concern(self, tool: str) -> bool:
        return bool(self._hooks) and any(hook.matches(tool) for hook in self._hooks)

    async def before(self, call: Call, payload: Any) -> Any:
        """Each hook gets what the one before it left."""
        for hook in self._hooks:
            if hook.matches(call.tool):
                payload = await hook.before(call, payload)
        return payload

    async def asked(
        self, call: Call, tool: Tool, session: Session, payload: Any, needs: list[Need]
    ) -> tuple[Action, str | None, str] | None:
        return None

    async def after(self, call: Call, result: Result) -> Result:
        for hook in self._hooks:
            if hook.matches(call.tool):
                result = await hook.after(call, result)
        return result
