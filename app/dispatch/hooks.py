"""Hooks of the pipeline: run in order, each within its timeout; each answer is published as a `call.hook` event."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.core.calls import Call
from app.core.errors import CallError, HookDenied
from app.core.hooks import Hook, HookFailed, Point
from app.core.ports import Clock
from app.core.results import Result
from app.core.rules import Action, Need
from app.core.sessions import Session
from app.core.tools import Effect, Payload, Tool
from app.core.util.json_codec import dumps

log = logging.getLogger(__name__)

Publish = Callable[[dict[str, Any]], None]
"""Publishes one run of a hook."""

MAX_PREVIEW_CHARS = 2_000
ANSWERS: dict[Point, set[str]] = {
    Point.DEFINITION: {"description", "parameters"},
    Point.BEFORE: {"arguments", "input", "deny"},
    Point.ASK: {"decision", "message", "deny"},
    Point.AFTER: {"output", "deny"},
    Point.SHELL_ENV: {"env", "deny"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOutcome:
    """How a call went, before its end is written. `executed`: the tool was started. `whole`: full output."""

    executed: bool
    result: Result | None
    error: CallError | None
    whole: str | None = None
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """A hook's answer after validation."""

    verdict: str = "ok"
    value: Any = None
    message: str | None = None


class Hooks:
    """The hooks of a service, run in order. Each gets what the one before it left."""

    def __init__(self, hooks: Sequence[Hook], clock: Clock) -> None:
        self._hooks = {point: tuple(hook for hook in hooks if point in hook.points) for point in Point}
        self.is_empty = not hooks
        self._clock = clock

    def has(self, point: Point, tool: str) -> bool:
        hooks = self._hooks[point]
        return bool(hooks) and any(hook.concerns(point, tool) for hook in hooks)

    async def before(self, call: Call, tool: Tool, session: Session, payload: Any, publish: Publish) -> Any:
        """The arguments or input as the hooks leave them. Raises `HookDenied`."""
        for hook in self._at(Point.BEFORE, tool.name):
            read = partial(_read_payload, tool.takes, payload)
            answer = await self._ask(hook, Point.BEFORE, _about(call, tool, session, payload), read, publish)
            payload = answer.value if answer.verdict == "changed" else payload
        return payload

    async def decide(
        self, call: Call, tool: Tool, session: Session, payload: Any, needs: Sequence[Need], publish: Publish
    ) -> tuple[Action, str | None, str] | None:
        """The decision of the first hook that decides instead of a person, with its reason and name."""
        about = _about(call, tool, session, payload) | {"needs": [need.view() for need in needs]}
        for hook in self._at(Point.ASK, tool.name):
            try:
                answer = await self._ask(hook, Point.ASK, about, _read_decision, publish)
            except HookDenied as no:
                return Action.DENY, no.message, hook.name
            if answer.verdict == "allow":
                return Action.ALLOW, answer.message, hook.name
        return None

    async def after(
        self, call: Call, tool: Tool, session: Session, payload: Any, outcome: HookOutcome, publish: Publish
    ) -> HookOutcome:
        """The outcome as the hooks leave it. A denial becomes the call's error; the result stays."""
        for hook in self._at(Point.AFTER, tool.name):
            about = _about(call, tool, session, payload) | _outcome_view(outcome)
            try:
                answer = await self._ask(hook, Point.AFTER, about, _read_output, publish)
            except HookDenied as no:
                if not isinstance(outcome.error, HookDenied):  # the first denial stays
                    outcome = replace(outcome, error=no)
                continue
            if answer.verdict == "changed":
                outcome = replace(outcome, result=replace(outcome.result or Result(), output=answer.value))
        return outcome

    async def environment(
        self, call: Call, tool: Tool, session: Session, cwd: str, env: Mapping[str, str], publish: Publish
    ) -> dict[str, str]:
        """The environment with what the hooks add to it. Raises `HookDenied`."""
        about = {"call": call.id, "tool": tool.name, "session": session.id, "agent": session.agent, "cwd": cwd}
        env = dict(env)
        for hook in self._at(Point.SHELL_ENV, tool.name):
            answer = await self._ask(hook, Point.SHELL_ENV, about, _read_env, publish)
            env |= answer.value or {}
        return env

    async def definition(self, view: dict[str, Any]) -> dict[str, Any]:
        """A tool's description and parameters as the hooks leave them. A hook that fails changes nothing."""
        for hook in self._at(Point.DEFINITION, view["name"]):
            about = {name: view[name] for name in ("name", "description", "parameters")}
            try:
                answer = await self._ask(hook, Point.DEFINITION, about, _read_definition, lambda data: None)
            except HookDenied:
                continue  # there is no call to end; the log has it
            view = view | (answer.value or {})
        return view

    def _at(self, point: Point, tool: str) -> Iterator[Hook]:
        return (hook for hook in self._hooks[point] if hook.concerns(point, tool))

    async def _ask(
        self,
        hook: Hook,
        point: Point,
        about: dict[str, Any],
        read: Callable[[dict[str, Any]], HookAnswer],
        publish: Publish,
    ) -> HookAnswer:
        """Run one hook and publish it. Raises `HookDenied` when it denies, or fails and is required."""
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(hook.timeout):
                returned = await hook.run(point, _json_copy(about))
            answer = _interpret(point, returned, read)
        except HookFailed as failed:
            answer = HookAnswer("failed", message=str(failed))
        except TimeoutError:
            answer = HookAnswer("failed", message=f"it did not answer within {hook.timeout:g} s")
        except (Exception, SystemExit) as error:
            log.exception("the hook %s broke", hook.name)
            answer = HookAnswer("failed", message=f"it raised {type(error).__name__}")
        took = round((self._clock.monotonic() - begun) * 1000, 3)
        data = {"name": hook.name, "point": point.value, "verdict": answer.verdict, "duration_ms": took}
        publish(data if answer.message is None else data | {"message": answer.message})
        if answer.verdict == "deny":
            raise HookDenied(answer.message or f"The hook {hook.name} denied it.")
        if answer.verdict == "failed":
            log.warning("the hook %s failed at %s: %s", hook.name, point, answer.message)
            if hook.blocks(point):
                raise HookDenied(f"The hook {hook.name} failed ({answer.message}), and it is required.")
        return answer


def _about(call: Call, tool: Tool, session: Session, payload: Any) -> dict[str, Any]:
    return {
        "call": call.id,
        "tool": tool.name,
        "kind": tool.source,
        "effect": _effect(tool, payload).value,
        "session": session.id,
        "agent": session.agent,
        "attempt": call.attempt,
        "input" if isinstance(payload, str) else "arguments": payload,
    }


def _effect(tool: Tool, payload: Any) -> Effect:
    """The effect of a call with this payload; WRITE when the payload is invalid."""
    if isinstance(tool.effect, Effect):
        return tool.effect
    try:
        return tool.effect_of(tool.parse(payload))
    except Exception:  # noqa: BLE001 - the line meets it again, where it becomes the call's end
        return Effect.WRITE


def _outcome_view(outcome: HookOutcome) -> dict[str, Any]:
    error = outcome.error
    return {
        "executed": outcome.executed,
        "success": error is None,
        "output": None if outcome.result is None else outcome.result.output[:MAX_PREVIEW_CHARS],
        "error": None if error is None else {"code": error.code, "message": error.message},
        "duration_ms": outcome.duration_ms,
    }


def _json_copy(value: Any) -> Any:
    """A copy made of plain JSON values, which a hook may change without effect."""
    return json.loads(dumps(value))


def _interpret(point: Point, answer: Any, read: Callable[[dict[str, Any]], HookAnswer]) -> HookAnswer:
    """Validate an answer. An invalid one is a failure, because it may have meant a denial."""
    if answer is None:
        return HookAnswer()
    if not isinstance(answer, dict):
        raise HookFailed("its answer is not an object")
    if unknown := sorted(str(name) for name in answer if name not in ANSWERS[point]):
        raise HookFailed(f"its answer has `{unknown[0]}`, which means nothing at {point}")
    try:
        plain = {name: value for name, value in _json_copy(answer).items() if value is not None}
    except (TypeError, ValueError):
        raise HookFailed("its answer cannot be written as JSON") from None
    reason = plain.pop("deny", None)
    if reason is None:
        return read(plain) if plain else HookAnswer()
    return HookAnswer("deny", message=_text("deny", reason)[:MAX_PREVIEW_CHARS])


def _read_payload(takes: Payload, was: Any, answer: dict[str, Any]) -> HookAnswer:
    if takes not in answer or len(answer) > 1:
        raise HookFailed(f"its answer has `{'input' if takes == 'arguments' else 'arguments'}`, not `{takes}`")
    given = answer[takes]
    payload = _object(takes, given) if takes == "arguments" else _text(takes, given, is_empty_fine=True)
    return HookAnswer() if payload == was else HookAnswer("changed", payload)


def _read_decision(answer: dict[str, Any]) -> HookAnswer:
    message = _text("message", answer["message"]) if "message" in answer else None
    match answer.get("decision"):
        case "allow" | "deny" as decision:
            return HookAnswer(decision, message=message)
        case None:
            raise HookFailed("its answer has a message and no decision")
        case _:
            raise HookFailed("its decision is neither `allow` nor `deny`")


def _read_output(answer: dict[str, Any]) -> HookAnswer:
    return HookAnswer("changed", _text("output", answer["output"], is_empty_fine=True))


def _read_env(answer: dict[str, Any]) -> HookAnswer:
    env = _object("env", answer["env"])
    for name, value in env.items():
        if not isinstance(value, str):
            raise HookFailed(f"the variable `{name}` is not text")
        if not name or "=" in name or "\0" in name + value:
            raise HookFailed(f"`{name}` cannot be a variable")
    return HookAnswer("changed", env)


def _read_definition(answer: dict[str, Any]) -> HookAnswer:
    if "description" in answer:
        _text("description", answer["description"])
    if "parameters" in answer:
        _object("parameters", answer["parameters"])
    return HookAnswer("changed", answer)


def _text(name: str, value: Any, *, is_empty_fine: bool = False) -> str:
    if not isinstance(value, str) or not (value or is_empty_fine):
        raise HookFailed(f"its `{name}` is not text")
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HookFailed(f"its `{name}` is not an object")
    return value
