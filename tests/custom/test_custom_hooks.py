"""Hooks from outside: real commands, a real server that checks the signature, real files; broken ones among them."""

import asyncio
import hmac
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from app.config import HookSetting
from app.core.errors import Misconfigured, NetworkError
from app.core.hooks import Hook, HookFailed, Point
from app.core.network_policy import NetworkPolicy, SessionSecrets
from app.core.ports import HttpRequest, HttpResponse
from app.core.util.clocks import SystemClock
from app.custom.hooks import HookDeps, Loaded, PythonRun, from_entry_points, from_files, from_settings
from app.sandbox.files.workspaces import python_files
from app.sandbox.process.trusted import TrustedProcesses
from tests.support.services import HANG, until

BEFORE = Point.BEFORE
ABOUT = {"call": "call_1", "tool": "shell", "arguments": {"command": "rm -rf é"}}
GIVEN = {"point": "tool.execute.before"} | ABOUT
SECRETS = {"hooks": "a secret for hooks"}


class PlainOutbound:
    """The wire out without its checks, so that loopback can be reached."""

    async def send(
        self,
        request: HttpRequest,
        *,
        owner: str,
        policies: Sequence[NetworkPolicy | None] = (),
        agree: Callable[[str], Awaitable[None]] | None = None,
        lent: SessionSecrets | None = None,
    ) -> HttpResponse:
        async with httpx.AsyncClient(timeout=request.timeout, trust_env=False) as client:
            try:
                got = await client.request(
                    request.method, request.url, headers=dict(request.headers), content=request.body
                )
            except httpx.TransportError as error:
                raise NetworkError(f"No answer from /a/secret/place: {error}") from None
        return HttpResponse(status=got.status_code, headers=got.headers, body=got.content, url=request.url)


def reach() -> HookDeps:
    return HookDeps(
        processes=TrustedProcesses(),
        outbound=PlainOutbound(),
        sign=lambda name: SECRETS[name],
        clock=SystemClock(),
        environ=os.environ | {"HOOK_MODE": "strict", "HOOK_OTHER": "x"},
    )


def of(**setting: Any) -> Hook:
    [made] = from_settings([HookSetting(name="guard", on=[BEFORE], **setting)], reach())
    return made


def command(script: str, **more: Any) -> Hook:
    return of(command=["bash", "-c", script], **more)


async def ask(made: Hook) -> dict[str, Any] | None:
    async with asyncio.timeout(2 * HANG):
        return await made.run(BEFORE, dict(ABOUT))


# Settings.


def test_a_setting_becomes_the_hook_it_describes() -> None:
    setting = HookSetting(
        name="guard", on=[BEFORE, Point.AFTER], tools=["a*", "b"], command=["true"], timeout=7, on_failure="block"
    )

    [made] = from_settings([setting], reach())

    assert made == Hook(
        name="guard",
        points=frozenset({BEFORE, Point.AFTER}),
        run=made.run,
        tools=("a*", "b"),
        timeout=7,
        on_failure="block",
    )


def test_a_webhook_without_a_wire_out_is_said_at_the_start() -> None:
    setting = HookSetting(name="guard", on=[BEFORE], url="http://127.0.0.1/")
    deaf = HookDeps(
        processes=TrustedProcesses(), outbound=None, sign=SECRETS.__getitem__, clock=SystemClock(), environ={}
    )

    with pytest.raises(Misconfigured, match="The hook guard is a webhook, and this service sends no requests"):
        from_settings([setting], deaf)


# Commands.


async def test_a_command_reads_json_and_answers_with_json() -> None:
    script = "import json, sys; print(json.dumps(dict(arguments=json.load(sys.stdin))))"
    echo = of(command=[sys.executable, "-c", script])

    assert await ask(echo) == {"arguments": GIVEN}


@pytest.mark.parametrize("script", ["true", "cat > /dev/null; echo; echo", "echo null", "echo noise >&2"])
async def test_a_command_may_have_nothing_to_say(script: str) -> None:
    assert await ask(command(script)) is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo ' Not on a Friday. ' >&2; echo '{\"arguments\": {}}'; exit 2", "Not on a Friday."),
        ("exit 2", "The hook guard denied this."),
        (r"printf 'bytes \xff' >&2; exit 2", "bytes \ufffd"),
    ],
)
async def test_exit_code_2_is_a_no_with_stderr_as_its_reason(script: str, reason: str) -> None:
    assert await ask(command(script)) == {"deny": reason}


async def test_anything_else_is_a_failure_in_our_own_words(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("echo /secret/path >&2; exit 1", "it ended with exit code 1"),
        ("exit 3", "it ended with exit code 3"),
        ("kill -9 $$", "it was killed"),
        ("echo no json", "its answer is not JSON"),
        ('echo \'{"arguments": {"x": NaN}}\'', "its answer is not JSON"),
        ("echo '[1]'", "its answer is not an object"),
        ("echo '\"deny\"'", "its answer is not an object"),
        (r"printf '\xff'", "its answer is not JSON"),
        ("head -c 100000 /dev/zero | tr '\\0' '['", "its answer is not JSON"),
        ("echo '{'; head -c 2000000 /dev/zero | tr '\\0' ' '; echo '}'", "its answer is not JSON"),
    ]
    for script, why in cases:
        with subtests.test(script=script, why=why):
            with pytest.raises(HookFailed) as failed:
                await ask(command(script))

            assert str(failed.value) == why


async def test_a_command_that_is_not_there_is_a_failure_that_names_no_path() -> None:
    with pytest.raises(HookFailed, match=r"^it cannot be started$"):
        await ask(of(command=["/no/such/program"]))


async def test_a_command_that_hangs_is_killed_in_time() -> None:
    with pytest.raises(TimeoutError):
        await ask(command("sleep 600", timeout=0.2))


async def test_a_command_sees_of_our_environment_what_its_setting_names() -> None:
    script = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(env=dict(os.environ))))'"
    env = command(script, env=["HOOK_MODE", "HOOK_UNSET"])

    answer = await ask(env)

    assert answer is not None
    assert {name: value for name, value in answer["env"].items() if "HOOK" in name} == {"HOOK_MODE": "strict"}


# Webhooks.


@dataclass
class Hookery:
    """A server that answers as it is told, and keeps what it was asked."""

    url: str = ""
    status: int = 200
    answer: bytes = b""
    asked: list[tuple[str, dict[bytes, bytes], bytes]] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.asked.append((scope["method"] + " " + scope["path"], dict(scope["headers"]), body))
        await self.go.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"location", b"/elsewhere")]})
        await send({"type": "http.response.body", "body": self.answer})


@asynccontextmanager
async def running() -> AsyncIterator[Hookery]:
    hookery = Hookery()
    hookery.go.set()
    config = uvicorn.Config(hookery, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    hookery.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield hookery
    hookery.go.set()
    await server.shutdown()


@pytest.fixture
async def hookery() -> AsyncIterator[Hookery]:
    async with running() as started:
        yield started


async def test_a_webhook_is_a_signed_post_of_the_same_object(hookery: Hookery) -> None:
    hookery.answer = b'{"deny": "No."}'

    answer = await ask(of(url=f"{hookery.url}/guard", secret="hooks"))

    [(line, headers, body)] = hookery.asked
    assert answer == {"deny": "No."}
    assert (line, headers[b"content-type"], json.loads(body)) == ("POST /guard", b"application/json", GIVEN)
    time, _, signature = headers[b"toolcrib-signature"].decode().partition(",v1=")
    at = time.removeprefix("t=")
    expected = hmac.new(SECRETS["hooks"].encode(), at.encode() + b"." + body, "sha256").hexdigest()
    assert hmac.compare_digest(signature, expected)
    assert abs(int(at) - SystemClock().now() / 1_000_000) < 60


async def test_a_webhook_without_a_secret_is_not_signed(hookery: Hookery) -> None:
    assert await ask(of(url=hookery.url)) is None

    assert b"toolcrib-signature" not in hookery.asked[0][1]


async def test_a_secret_that_is_not_there_is_a_failure_and_nothing_is_sent(hookery: Hookery) -> None:
    with pytest.raises(HookFailed, match=r"^its secret lost does not exist$"):
        await ask(of(url=hookery.url, secret="lost"))

    assert hookery.asked == []


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_any_success_is_an_answer_and_nothing_is_one_too(hookery: Hookery, status: int) -> None:
    hookery.status = status

    assert await ask(of(url=hookery.url)) is None


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (500, b"{}", "it answered with status 500"),
        (404, b"{}", "it answered with status 404"),
        (302, b"{}", "it answered with status 302"),
        (200, b"<html>", "its answer is not JSON"),
        (200, b"[]", "its answer is not an object"),
    ],
)
async def test_any_other_answer_is_a_failure(hookery: Hookery, status: int, answer: bytes, why: str) -> None:
    hookery.status, hookery.answer = status, answer

    with pytest.raises(HookFailed) as failed:
        await ask(of(url=hookery.url))

    assert str(failed.value) == why
    assert len(hookery.asked) == 1


async def test_a_server_that_cannot_be_reached_or_hangs_is_a_failure_in_our_own_words(hookery: Hookery) -> None:
    hookery.go.clear()

    for url in ("http://127.0.0.1:1", hookery.url):
        with pytest.raises(HookFailed, match=r"^it cannot be reached: NetworkError$"):
            await ask(of(url=url, timeout=0.2))


# Python.


async def test_an_async_function_runs_on_the_loop_and_another_in_a_thread_of_its_own() -> None:
    async def on_loop(about: dict[str, Any]) -> dict[str, Any]:
        return about | {"thread": threading.current_thread().name}

    def beside(about: dict[str, Any]) -> dict[str, Any]:
        return about | {"thread": threading.current_thread().name}

    assert await PythonRun(on_loop)(BEFORE, ABOUT) == GIVEN | {"thread": "MainThread"}
    assert await PythonRun(beside)(BEFORE, ABOUT) == GIVEN | {"thread": "toolcrib-hook"}


async def test_what_an_object_promises_is_waited_for() -> None:
    class Guard:
        async def __call__(self, about: dict[str, Any]) -> dict[str, Any]:
            return {"deny": about["tool"]}

    assert await PythonRun(Guard())(BEFORE, ABOUT) == {"deny": "shell"}


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ValueError("x"), ValueError, "x"),
        (StopIteration(), RuntimeError, "coroutine raised StopIteration"),
        (SystemExit(1), HookFailed, "it raised SystemExit"),
        (asyncio.CancelledError(), HookFailed, "it raised CancelledError"),
    ],
)
async def test_what_a_function_raises_in_its_thread_comes_out_here(
    error: BaseException, kind: type[Exception], words: str
) -> None:
    def broken(about: dict[str, Any]) -> None:
        raise error

    with pytest.raises(kind, match=words):
        await PythonRun(broken)(BEFORE, ABOUT)


async def test_a_function_that_hangs_holds_nobody() -> None:
    go, over = threading.Event(), threading.Event()

    def hangs(about: dict[str, Any]) -> None:
        go.wait(2 * HANG)
        over.set()

    asking = asyncio.ensure_future(PythonRun(hangs)(BEFORE, ABOUT))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go.set()
    await until(over.is_set)


GUARD = """
from dataclasses import dataclass
from app.core.hooks import hook

@dataclass
class Note:
    text: "str"

@hook("tool.execute.before", tools=["shell*", "write"], timeout=3)
def guard(about):
    return {"deny": Note(about["tool"]).text}

@hook("tool.execute.after", name="scribe")
async def second(about):
    return {"output": about["point"]}
"""


async def test_the_files_of_a_folder_are_loaded_and_a_broken_one_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {
        "b_guard.py": GUARD,
        "a_broken.py": "import no_such_module_at_all",
        "c_wrong.py": "def (",
        "d_empty.py": "x = 1",
        "e_exit.py": "raise SystemExit(3)",
        "f_point.py": "from app.core.hooks import hook\n@hook('tool.nowhere')\ndef f(about): ...",
        "g_twice.py": "from toolcrib_hooks_b_guard import guard",
        "_helper.py": "raise RuntimeError('not meant to be loaded')",
        "notes.txt": "not Python",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    loaded = from_files(python_files(tmp_path))

    guard, scribe = loaded.hooks
    assert (guard.name, guard.tools, guard.timeout) == ("guard", ("shell*", "write"), 3)
    assert (scribe.name, scribe.points) == ("scribe", frozenset({Point.AFTER}))
    assert await ask(guard) == {"deny": "shell"}
    assert await scribe.run(Point.AFTER, {}) == {"output": "tool.execute.after"}
    said = [failure.removeprefix(f"{tmp_path}/").partition(": ")[::2] for failure in loaded.failures]
    assert [name for name, _ in said] == [
        "a_broken.py",
        "c_wrong.py",
        "d_empty.py",
        "e_exit.py",
        "f_point.py",
        "g_twice.py",
    ]
    assert said[0][1] == "ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert said[2][1] == "HookFailed: no function in it is marked with @hook"
    assert len([record for record in caplog.records if "cannot be loaded" in record.message]) == 6
    assert "toolcrib_hooks_a_broken" not in sys.modules


def test_links_that_stay_in_the_folder_are_files_and_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, outside = tmp_path / "hooks", tmp_path / "outside.py"
    (folder / "..data").mkdir(parents=True)
    (folder / "..data" / "a.py").touch()
    (folder / "a.py").symlink_to(folder / "..data" / "a.py")
    outside.touch()
    (folder / "b.py").symlink_to(outside)
    (folder / "c.py").symlink_to(folder / "nowhere.py")
    (folder / "d.py").mkdir()
    (folder / "e.py").touch()

    assert python_files(folder) == [folder / "a.py", folder / "e.py"]
    assert "b.py leads out of its folder" in caplog.text


async def test_installed_packages_bring_hooks_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crib_plugin.py").write_text(GUARD)
    info = tmp_path / "crib_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crib-plugin\nVersion: 1.0\n")
    lines = ["[toolcrib.hooks]", "guard = crib_plugin:guard", "note = crib_plugin:Note", "lost = crib_plugin:lost"]
    (info / "entry_points.txt").write_text("\n".join(lines))
    assert from_entry_points() == Loaded()
    monkeypatch.syspath_prepend(tmp_path)

    loaded = from_entry_points()

    [guard] = loaded.hooks
    assert await ask(guard) == {"deny": "shell"}
    assert sorted(loaded.failures) == [
        "crib_plugin:Note: HookFailed: it is no function marked with @hook",
        "crib_plugin:lost: AttributeError: module 'crib_plugin' has no attribute 'lost'",
    ]
