"""Hooks from outside, as the line reaches them: Python functions, commands and webhooks.

All three get the same object: the point, and what there is to say at it. A command
reads it as JSON and answers with JSON or nothing; exit code 2 is a no, with stderr
as its reason, any other but 0 a failure. A webhook gets it as the body of a POST.
What a command wrote or a server sent is for the log; a model reads only our words.
"""

import asyncio
import hmac
import importlib.util
import inspect
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from app.core.errors import CallError, Misconfigured
from app.core.hooks import Hook, HookFailed, HookRun, OnFailure, Point, marked
from app.core.ports import Clock, HttpRequest, Outbound
from app.core.sandbox import Finished, Processes
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.util.json_codec import dumps

log = logging.getLogger(__name__)

Signer = Callable[[str], str]
"""The value of the secret of this name; raises `LookupError` when there is none."""

GROUP = "toolcrib.hooks"
BLOCKED = 2
LIMIT = 1024 * 1024
SHOWN = 2_000


class HookWish(Protocol):
    """A hook as the operator writes it down: a `command` or a `url`."""

    @property
    def name(self) -> str: ...
    @property
    def on(self) -> Sequence[Point]: ...
    @property
    def tools(self) -> Sequence[str]: ...
    @property
    def command(self) -> Sequence[str] | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def secret(self) -> str | None: ...
    @property
    def env(self) -> Sequence[str]: ...
    @property
    def timeout(self) -> float: ...
    @property
    def on_failure(self) -> OnFailure | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What commands and webhooks need of the world. Of `environ` a command gets the variables its setting names."""

    processes: Processes
    outbound: Outbound | None
    sign: Signer
    clock: Clock
    environ: Mapping[str, str]


class PythonRun:
    """A function of the operator. One that is not async has a thread of its own, and none waits for it at the end."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        given = {"point": point.value} | about
        if inspect.iscoroutinefunction(self._function):
            answer = self._function(given)
        else:
            answer = await _in_thread(lambda: self._function(given))
        if inspect.isawaitable(answer):
            answer = await answer
        return answer  # type: ignore[no-any-return]  # what it is worth is looked at where hooks are asked


class CommandRun:
    """A program that is started anew each time."""

    def __init__(self, wish: HookWish, argv: Sequence[str], reach: Reach) -> None:
        self._name = wish.name
        self._argv = argv
        self._seconds = wish.timeout
        self._processes = reach.processes
        self._env = {name: reach.environ[name] for name in wish.env if name in reach.environ}

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        given = dumps({"point": point.value} | about)
        try:
            done = await self._processes.run(self._argv, stdin=given, env=self._env, seconds=self._seconds, limit=LIMIT)
        except TimeoutError:
            raise
        except OSError as error:
            log.warning("the hook %s cannot be started: %s", self._name, error)
            raise HookFailed("it cannot be started") from None
        if done.code == BLOCKED:
            return {"deny": _said(done) or f"The hook {self._name} said no."}
        if done.code:
            log.warning("the hook %s ended with %d: %s", self._name, done.code, _said(done)[-SHOWN:])
            raise HookFailed(f"it ended with exit code {done.code}" if done.code > 0 else "it was killed")
        return _read(done.stdout)


class WebhookRun:
    """A server that is asked. With a secret it can tell that the question is ours, and when it was put."""

    def __init__(self, wish: HookWish, url: str, reach: Reach) -> None:
        if reach.outbound is None:
            raise Misconfigured(f"The hook {wish.name} is a webhook, and this service sends no requests.")
        self._name = wish.name
        self._url = url
        self._secret = wish.secret
        self._seconds = wish.timeout
        self._outbound = reach.outbound
        self._sign = reach.sign
        self._clock = reach.clock

    async def __call__(self, point: Point, about: dict[str, Any]) -> dict[str, Any] | None:
        body = dumps({"point": point.value} | about)
        request = HttpRequest(
            method="POST",
            url=self._url,
            headers={"Content-Type": "application/json"} | self._signature(body),
            body=body,
            timeout=self._seconds,
            limit=LIMIT,
        )
        try:
            answer = await self._outbound.send(request, owner=GLOBAL_PRINCIPAL)
        except CallError as error:
            log.warning("the hook %s cannot be reached: %s", self._name, error.message)
            raise HookFailed(f"it cannot be reached: {error.code}") from None
        if not 200 <= answer.status < 300:
            raise HookFailed(f"it answered with status {answer.status}")
        return _read(answer.body)

    def _signature(self, body: bytes) -> dict[str, str]:
        """The time is signed too, so that an old question cannot be put again."""
        if self._secret is None:
            return {}
        try:
            value = self._sign(self._secret)
        except LookupError:
            raise HookFailed(f"its secret {self._secret} is not there") from None
        at = self._clock.now() // 1_000_000
        digest = hmac.new(value.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
        return {"Toolcrib-Signature": f"t={at},v1={digest}"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Python hooks that were found, and a sentence for each place that could not be read."""

    hooks: tuple[Hook, ...] = ()
    failures: tuple[str, ...] = ()


def from_settings(wishes: Iterable[HookWish], reach: Reach) -> list[Hook]:
    """The configured hooks, in their order. Raises `Misconfigured`."""
    return [
        Hook(
            name=wish.name,
            points=frozenset(wish.on),
            run=_run_of(wish, reach),
            tools=tuple(wish.tools),
            timeout=wish.timeout,
            on_failure=wish.on_failure,
        )
        for wish in wishes
    ]


def from_files(paths: Iterable[Path]) -> Loaded:
    """The functions marked with `@hook` in these files, which are executed. A broken file costs only itself."""
    return _load((str(path), partial(_hooks_in, path)) for path in paths)


def from_entry_points() -> Loaded:
    """The hooks of installed packages: an entry point names a function marked with `@hook`."""
    return _load((point.value, partial(_hooks_at, point)) for point in _entry_points(tuple(sys.path)))


def _run_of(wish: HookWish, reach: Reach) -> HookRun:
    if wish.command is not None:
        return CommandRun(wish, wish.command, reach)
    assert wish.url is not None, "one of the two is there"
    return WebhookRun(wish, wish.url, reach)


def _load(places: Iterable[tuple[str, Callable[[], list[Hook]]]]) -> Loaded:
    hooks, failures = list[Hook](), list[str]()
    for where, load in places:
        try:
            hooks += load()
        except (Exception, SystemExit) as error:
            log.exception("the hooks of %s cannot be loaded", where)
            failures.append(f"{where}: {type(error).__name__}: {error}")
    return Loaded(tuple(hooks), tuple(failures))


def _execute(path: Path) -> ModuleType:
    name = f"toolcrib_hooks_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its classes and annotations are looked up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _hooks_in(path: Path) -> list[Hook]:
    """The hooks a file defines, in its order; what it only imports is another file's."""
    module = _execute(path)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    found = [_made(value) for value in own if marked(value)]
    if not found:
        raise HookFailed("no function in it is marked with @hook")
    return found


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """What is installed does not change while the path stays the same, and to look costs many files."""
    return entry_points(group=GROUP)


def _hooks_at(point: EntryPoint) -> list[Hook]:
    return [_made(point.load())]


def _made(function: Any) -> Hook:
    making = marked(function)
    if making is None:
        raise HookFailed("it is no function marked with @hook")
    return making(run=PythonRun(function))


def _read(said: bytes) -> dict[str, Any] | None:
    """An answer as JSON; nothing is an answer too."""
    if not said.strip():
        return None
    try:
        answer = json.loads(said, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise HookFailed("its answer is not JSON") from None
    if answer is not None and not isinstance(answer, dict):
        raise HookFailed("its answer is not an object")
    return answer


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _said(done: Finished) -> str:
    return done.stderr.decode("utf-8", "replace").strip()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Do work in a thread that nothing waits for: one that hangs holds up neither others nor the end of the service."""
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def carry() -> None:
        answer, error = None, None
        try:
            answer = context.run(work)
        except BaseException as raised:  # noqa: BLE001 - it is raised again where somebody waits
            error = raised
        with suppress(RuntimeError):  # the loop may be gone meanwhile
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=carry, name="toolcrib-hook", daemon=True).start()
    answer, error = await done
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise HookFailed(f"it raised {type(error).__name__}")
    return answer
