"""The authoring face: tools as their authors write them, run by the real line."""

import asyncio
import errno
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from app.core.errors import InvalidArgs, PermissionDenied, TooLarge
from app.core.results import Attachment, Result
from app.core.tools import Lane, Tool
from app.sdk import Audience, DefinedTool, Effect, Need, Ready, ToolContext, ToolResult, define_tool
from tests.support.services import HANG, Crib, RunningService
from tests.support.toy_tools import Toys

EXAMPLE = Path(__file__).parent / "scenarios" / "read_tool.txt"
WEATHER = Path(__file__).parent / "scenarios" / "weather_tool.py"
IMPORTS = """from pathlib import Path
from pydantic import BaseModel
from app.sdk import ToolContext, ToolResult, define_tool
"""


class Words(BaseModel):
    text: str = ""


@pytest.fixture
async def open_crib(crib: Crib) -> Crib:
    return await crib.open()


async def call(crib: Crib, defined: DefinedTool[Any], text: str = "") -> dict[str, Any]:
    """One call of a tool just defined, over the whole line."""
    registry = crib.services.dispatcher.registry
    if registry.get(defined.id, None) is None:
        registry.add(defined.tool)
    return await crib.run(defined.id, {"text": text})


async def test_the_example_that_tools_are_written_after_runs_with_only_its_imports_added(
    data_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "read.py").write_text(IMPORTS + EXAMPLE.read_text())
    letter = tmp_path / "letter.txt"
    letter.write_text("one\ntwo\nthree")
    rules = [{"permission": "read", "pattern": "*secret*", "action": "deny"}]
    service = RunningService(data_dir, Toys(), tools_dir=folder, rules=rules)
    await service.open()

    async def read(path: Path, **more: int) -> dict[str, Any]:
        body = {"tool": "read", "arguments": {"file_path": str(path)} | more}
        answer: dict[str, Any] = (await service.client.post("/v1/calls", json=body)).json()
        return answer

    try:
        listed = (await service.client.get("/v1/tools/read")).json()
        done = await read(letter, offset=1, limit=1)
        missing = await read(tmp_path / "nothing.txt")
        denied = await read(tmp_path / "secret.txt")
        wrong = await read(letter, limit="many")  # type: ignore[arg-type]
    finally:
        await service.close()

    assert (listed["description"], listed["source"]) == ("Read a file from the filesystem", "file")
    assert listed["parameters"]["required"] == ["file_path"]
    assert done["status"] == "completed"
    assert done["result"] == {
        "title": "letter.txt",
        "output": "<file>\n    2→two\n</file>",
        "metadata": {"truncated": True, "total_lines": 3},
        "attachments": [],
        "structured": None,
    }
    assert (missing["error"]["code"], missing["error"]["message"]) == (
        "ENOENT",
        f"File not found: {tmp_path / 'nothing.txt'}",
    )
    assert denied["error"]["code"] == "PermissionDenied"
    assert wrong["error"]["code"] == "InvalidArgs"


def test_the_readme_shows_the_short_example_as_it_is_run() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()

    assert f"```python file=tools/weather.py\n{WEATHER.read_text()}```" in readme


async def test_the_short_example_runs_in_a_real_service(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "weather.py").write_text(WEATHER.read_text())
    service = RunningService(data_dir, Toys(), tools_dir=folder)
    await service.open()

    try:
        answer = await service.client.post("/v1/calls", json={"tool": "get_weather", "arguments": {"city": "Oslo"}})
    finally:
        await service.close()

    body = answer.json()
    assert (body["status"], body["result"]["output"]) == ("completed", "Sunny in Oslo.")
    assert service.story(body["id"]) == ["call.pending", "call.running", "call.progress", "call.completed"]


async def test_a_decorated_function_stays_callable_and_says_what_it_is(open_crib: Crib) -> None:
    @define_tool(tool_id="shout_it", description="Say it loudly.", parameters=Words)
    async def shout_it(args: Words, ctx: ToolContext) -> ToolResult:
        """The author's own words."""
        return ToolResult(title="loud", output=args.text.upper())

    class Nobody:
        pass

    nobody: Any = Nobody()
    assert (await shout_it(Words(text="a"), nobody)).output == "A"
    assert (await shout_it({"text": "b"}, nobody)).output == "B"
    with pytest.raises(InvalidArgs, match="shout_it cannot take these arguments"):
        await shout_it({"text": 1}, nobody)
    assert (shout_it.id, shout_it.description, shout_it.parameters) == ("shout_it", "Say it loudly.", Words)
    assert (vars(shout_it)["__name__"], shout_it.__doc__) == ("shout_it", "The author's own words.")
    assert isinstance(shout_it.tool, Tool)


async def test_what_is_not_said_is_safe() -> None:
    @define_tool("plain_one", "Plain.", Words)
    async def plain_one(args: Words, ctx: ToolContext) -> str:
        return ""

    tool = plain_one.tool
    assert (tool.effect, tool.lane, tool.timeout, tool.polls, tool.init) == (
        Effect.WRITE,
        Lane.WORKSPACE,
        120.0,
        False,
        None,
    )
    assert tool.title == "Plain one"
    assert tool.needs(Words(), None) == [Need("plain_one", "*")]  # type: ignore[arg-type]


async def test_what_is_said_counts() -> None:
    options: dict[str, Any] = {"title": "T", "effect": "read", "timeout": 5.0, "lane": "none", "polls": True}

    @define_tool("own_needs", "x", Words, needs=lambda args, scope: [Need("network", args.text)], **options)
    async def own_needs(args: Words, ctx: ToolContext) -> str:
        return ""

    @define_tool("fixed_needs", "x", Words, needs=[Need("mcp", "a"), Need("mcp", "b")])
    async def fixed_needs(args: Words, ctx: ToolContext) -> str:
        return ""

    scope: Any = None
    tool = own_needs.tool
    assert (tool.title, tool.effect, tool.timeout, tool.lane, tool.polls) == ("T", Effect.READ, 5.0, Lane.NONE, True)
    assert tool.needs(Words(text="host"), scope) == [Need("network", "host")]
    assert fixed_needs.tool.needs(Words(), scope) == [Need("mcp", "a"), Need("mcp", "b")]


@pytest.mark.parametrize("name", ["ab", "1st_tool", "a" * 65, "with space", "", "ünder"])
def test_a_name_no_provider_would_take_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid tool name"):
        define_tool(name, "x", Words)


async def test_every_form_of_a_result_is_taken(open_crib: Crib) -> None:
    attached = {"mime": "image/png", "url": "data:image/png;base64,AA=="}
    given: dict[str, Any] = {
        "text": "plain",
        "result": Result(output="core", structured={"a": 1}),
        "made": ToolResult("title", "out", {"n": 1}, [attached, Attachment("text/plain", "data:,x", "x.txt")]),
        "number": 7,
        "none": None,
    }

    @define_tool("answers", "x", Words)
    async def answers(args: Words, ctx: ToolContext) -> Any:
        return given[args.text]

    text, result, made, number, none = [await call(open_crib, answers, key) for key in given]

    assert text["result"]["output"] == "plain"
    assert (result["result"]["output"], result["result"]["structured"]) == ("core", {"a": 1})
    assert (made["result"]["title"], made["result"]["output"], made["result"]["metadata"]["n"]) == ("title", "out", 1)
    assert made["result"]["attachments"] == [
        {"type": "file", "filename": None} | attached,
        {"type": "file", "mime": "text/plain", "url": "data:,x", "filename": "x.txt"},
    ]
    for wrong, kind in ((number, "int"), (none, "NoneType")):
        message = f"answers failed: TypeError: expected a str or a ToolResult, not {kind}"
        assert wrong["error"] == {"code": "Internal", "message": message, "retryable": False}


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), "ENOENT", "a.txt: No such file."),
        (PermissionError("not for you"), "EACCES", "not for you"),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
            "ECONNREFUSED",
            f"[Errno {errno.ECONNREFUSED}] refused",
        ),
        (TimeoutError(), "ETIMEDOUT", "TimeoutError"),
        (socket.gaierror(-2, "Name or service not known"), "EIO", "[Errno -2] Name or service not known"),
        (TooLarge("Too much of it."), "TooLarge", "Too much of it."),
        (PermissionDenied("No."), "PermissionDenied", "No."),
        (KeyError("city"), "Internal", "breaks failed: KeyError: 'city'"),
        (StopIteration(3), "Internal", "breaks failed: RuntimeError: coroutine raised StopIteration"),
    ],
    ids=repr,
)
async def test_what_a_tool_raises_is_told_in_a_sentence(
    open_crib: Crib, raised: Exception, code: str, message: str
) -> None:
    @define_tool("breaks", "x", Words)
    async def breaks(args: Words, ctx: ToolContext) -> str:
        raise raised

    error = (await call(open_crib, breaks))["error"]

    assert (error["code"], error["message"]) == (code, message)


async def test_a_bug_is_logged_and_its_message_keeps_no_secret(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    await service.client.put("/v1/secrets/TOKEN", json={"value": "canary-in-the-coal-mine"})

    @define_tool("leaky", "x", Words)
    async def leaky(args: Words, ctx: ToolContext) -> str:
        raise RuntimeError("login failed with canary-in-the-coal-mine")

    service.services.dispatcher.registry.add(leaky.tool)
    body = (await service.client.post("/v1/calls", json={"tool": "leaky"})).json()

    assert body["error"]["message"] == "leaky failed: RuntimeError: login failed with [redacted]"
    assert "the tool leaky failed" in caplog.text


async def test_a_plain_function_runs_in_a_thread_and_can_tell_how_far_it_is(open_crib: Crib) -> None:
    @define_tool("in_thread", "x", Words)
    def in_thread(args: Words, ctx: ToolContext) -> str:
        ctx.metadata(title="half way", metadata={"done": 50})
        return f"{threading.current_thread() is threading.main_thread()} {ctx.session_id} {ctx.abort.is_set()}"

    done = await call(open_crib, in_thread)

    assert done["result"]["output"] == "False default False"
    assert "call.progress" in open_crib.story(done["id"])


async def test_a_plain_function_hears_that_nobody_waits_any_more(open_crib: Crib) -> None:
    started, ended = threading.Event(), threading.Event()

    @define_tool("endless", "x", Words)
    def endless(args: Words, ctx: ToolContext) -> str:
        started.set()
        while not ctx.abort.is_set():
            ended.wait(0.001)
        ended.set()
        return "too late"

    open_crib.services.dispatcher.registry.add(endless.tool)
    live = open_crib.submit("endless", {})
    await asyncio.to_thread(started.wait, HANG)
    await open_crib.cancel(live)

    assert (await open_crib.ended(live))["error"]["code"] == "Canceled"
    assert await asyncio.to_thread(ended.wait, HANG)


async def test_a_plain_function_cannot_ask_in_flight_and_is_told_so(open_crib: Crib) -> None:
    @define_tool("asking", "x", Words)
    def asking(args: Words, ctx: Any) -> str:
        ctx.ask("read", ["a.txt"])
        return "never"

    error = (await call(open_crib, asking))["error"]

    assert error["message"] == (
        "asking failed: TypeError: only an `async def` tool can ask while it runs; other tools declare their `needs`"
    )


async def test_a_rule_that_names_the_tool_counts_before_it_runs(crib: Crib) -> None:
    crib.settings["rules"] = [{"permission": "forbidden_one", "pattern": "*", "action": "deny"}]
    await crib.open()
    ran = []

    @define_tool("forbidden_one", "x", Words)
    async def forbidden_one(args: Words, ctx: ToolContext) -> str:
        ran.append(args)
        return ""

    assert (await call(crib, forbidden_one))["error"]["code"] == "PermissionDenied"
    assert ran == []


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (None, Ready()),
        ("The lamp is off.", Ready(reason="The lamp is off.")),
        (Ready(description="Other words."), Ready(description="Other words.")),
    ],
)
async def test_a_tool_says_whether_it_can_be_used_in_a_word(answer: Any, ready: Ready) -> None:
    async def slow(audience: Audience) -> Any:
        return answer

    def plain(audience: Audience) -> Any:
        return answer

    for init in (slow, plain):
        defined = define_tool("lamp", "x", Words, init=init)(lambda args, ctx: "")
        assert defined.tool.init is not None
        assert await defined.tool.init(Audience()) == ready
