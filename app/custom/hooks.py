"""Hooks of the operator: Python functions, commands and webhooks.

All three get the same object: the hook point and its data. A command reads it as JSON on stdin and answers with JSON
or nothing; exit code 2 denies, with stderr as the reason, any other but 0 is a failure. A webhook gets it as the body
of a POST. The output of a failed hook goes to the log; the model reads only the service's sentence.
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
from app.core.sandbox import Processes
from app.core.secrets import GLOBAL_PRINCIPAL
from app.core.util.json_codec import dumps

log = logging.getLogger(__name__)

Signer = Callable[[str], str]
"""The value of the secret of this name; raises `LookupError` when there is none."""

GROUP = "toolcrib.hooks"
DENIED = 2
MAX_ANSWER_BYTES = 1024 * 1024
MAX_LOGGED = 2_000


class HookSettings(Protocol):
    """A hook in the settings: a `command` or a `url`."""

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
class HookDeps:
    """What commands and webhooks need. Of `environ` a command gets the variables its setting names."""

    processes: Processes
    outbound: Outbound | None
    sign: Signer
    clock: Clock
    environ: Mapping[str, str]


class PythonRun:
    """A Python function. One that is not async runs in a thread of its own, which shutdown does not wait for."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    async def __call__(self, point: Point, data: dict[str, Any]) -> dict[str, Any] | None:
        payload = {"point": point.value} | data
        if inspect.iscoroutinefunction(self._function):
            answer = self._function(payload)
        else:
            answer = await _in_thread(lambda: self._function(payload))
        if inspect.isawaitable(answer):
            answer = await answer
        return answer  # type: ignore[no-any-return]  # checked by the dispatcher


class CommandRun:
    """A program, started for each call of the hook."""

    def __init__(self, settings: HookSettings, argv: Sequence[str], deps: HookDeps) -> None:
        self._name = settings.name
        self._argv = argv
        self._seconds = settings.timeout
        self._processes = deps.processes
        self._env = {name: deps.environ[name] for name in settings.env if name in deps.environ}

    async def __call__(self, point: Point, data: dict[str, Any]) -> dict[str, Any] | None:
        payload = dumps({"point": point.value} | data)
        try:
            done = await self._processes.run(
                self._argv, stdin=payload, env=self._env, seconds=self._seconds, limit=MAX_ANSWER_BYTES
            )
        except TimeoutError:
            raise
        except OSError as error:
            log.warning("the hook %s cannot be started: %s", self._name, error)
            raise HookFailed("it cannot be started") from None
        stderr = done.stderr.decode("utf-8", "replace").strip()
        if done.code == DENIED:
            return {"deny": stderr or f"The hook {self._name} denied this."}
        if done.code:
            log.warning("the hook %s ended with %d: %s", self._name, done.code, stderr[-MAX_LOGGED:])
            raise HookFailed(f"it ended with exit code {done.code}" if done.code > 0 else "it was killed")
        return _parse_answer(done.stdout)


class WebhookRun:
    """An HTTP server. With a secret the request is signed with its time."""

    def __init__(self, settings: HookSettings, url: str, deps: HookDeps) -> None:
        if deps.outbound is None:
            raise Misconfigured(f"The hook {settings.name} is a webhook, and this service sends no requests.")
        self._name = settings.name
        self._url = url
        self._secret = settings.secret
        self._seconds = settings.timeout
        self._outbound = deps.outbound
        self._sign = deps.sign
        self._clock = deps.clock

    async def __call__(self, point: Point, data: dict[str, Any]) -> dict[str, Any] | None:
        body = dumps({"point": point.value} | data)
        request = HttpRequest(
            method="POST",
            url=self._url,
            headers={"Content-Type": "application/json"} | self._signature(body),
            body=body,
            timeout=self._seconds,
            limit=MAX_ANSWER_BYTES,
        )
        try:
            response = await self._outbound.send(request, owner=GLOBAL_PRINCIPAL)
        except CallError as error:
            log.warning("the hook %s cannot be reached: %s", self._name, error.message)
            raise HookFailed(f"it cannot be reached: {error.code}") from None
        if not 200 <= response.status < 300:
            raise HookFailed(f"it answered with status {response.status}")
        return _parse_answer(response.body)

    def _signature(self, body: bytes) -> dict[str, str]:
        """The time is signed too, so that a request cannot be replayed later."""
        if self._secret is None:
            return {}
        try:
            value = self._sign(self._secret)
        except LookupError:
            raise HookFailed(f"its secret {self._secret} does not exist") from None
        at = self._clock.now() // 1_000_000
        digest = hmac.new(value.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
        return {"Toolcrib-Signature": f"t={at},v1={digest}"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Python hooks, and a sentence for each file or entry point that could not be loaded."""

    hooks: tuple[Hook, ...] = ()
    failures: tuple[str, ...] = ()


def from_settings(configured: Iterable[HookSettings], deps: HookDeps) -> list[Hook]:
    """The configured hooks, in their order. Raises `Misconfigured`."""
    return [
        Hook(
            name=settings.name,
            points=frozenset(settings.on),
            run=_run_of(settings, deps),
            tools=tuple(settings.tools),
            timeout=settings.timeout,
            on_failure=settings.on_failure,
        )
        for settings in configured
    ]


def from_files(paths: Iterable[Path]) -> Loaded:
    """The functions marked with `@hook` in these files, which are executed. A broken file costs only itself."""
    return _load((str(path), partial(_hooks_in_file, path)) for path in paths)


def from_entry_points() -> Loaded:
    """The hooks of installed packages: an entry point names a function marked with `@hook`."""
    return _load((point.value, partial(_hooks_of_entry_point, point)) for point in _entry_points(tuple(sys.path)))


def _run_of(settings: HookSettings, deps: HookDeps) -> HookRun:
    if settings.command is not None:
        return CommandRun(settings, settings.command, deps)
    assert settings.url is not None, "either command or url is set"
    return WebhookRun(settings, settings.url, deps)


def _load(sources: Iterable[tuple[str, Callable[[], list[Hook]]]]) -> Loaded:
    hooks, failures = list[Hook](), list[str]()
    for where, load in sources:
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
    sys.modules[name] = module  # its classes and annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _hooks_in_file(path: Path) -> list[Hook]:
    """The hooks a file defines, in its order, without those it imports."""
    module = _execute(path)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    hooks = [_to_hook(value) for value in own if marked(value)]
    if not hooks:
        raise HookFailed("no function in it is marked with @hook")
    return hooks


def _hooks_of_entry_point(point: EntryPoint) -> list[Hook]:
    return [_to_hook(point.load())]


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Cached, as it reads many files: installed packages do not change while `sys.path` stays the same."""
    return entry_points(group=GROUP)


def _to_hook(function: Any) -> Hook:
    make_hook = marked(function)
    if make_hook is None:
        raise HookFailed("it is no function marked with @hook")
    return make_hook(run=PythonRun(function))


def _parse_answer(raw: bytes) -> dict[str, Any] | None:
    """A hook's answer, which may be empty."""
    if not raw.strip():
        return None
    try:
        answer = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise HookFailed("its answer is not JSON") from None
    if answer is not None and not isinstance(answer, dict):
        raise HookFailed("its answer is not an object")
    return answer


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Run work in a thread of its own: one that hangs delays neither other hooks nor the shutdown."""
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def finish(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def run() -> None:
        answer, error = None, None
        try:
            answer = context.run(work)
        except BaseException as raised:  # noqa: BLE001 - raised again in the caller
            error = raised
        with suppress(RuntimeError):  # the loop may be closed meanwhile
            loop.call_soon_threadsafe(finish, answer, error)

    threading.Thread(target=run, name="toolcrib-hook", daemon=True).start()
    answer, error = await done
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise HookFailed(f"it raised {type(error).__name__}")
    return answer
