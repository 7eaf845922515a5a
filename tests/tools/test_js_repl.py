"""js_repl with a real Node: cells that keep what they declare, call tools, fail, hang and end their interpreter."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lark import Lark
from lark.exceptions import LarkError

from app.core.errors import CallError, InvalidArgs, TimedOut, ToolUnavailable
from app.core.results import Result
from app.core.tools import Context
from app.tools.exec import js_repl, js_repl_reset
from tests.support.repl_kernels import HANG, KernelContext, answered, differences, drawn

CELLS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "scenarios" / "js_cells.json").read_text())
JUDGE = Lark(js_repl.GRAMMAR, parser="earley", lexer="dynamic", ambiguity="resolve")


@pytest.fixture
async def toy() -> AsyncIterator[KernelContext]:
    toy = KernelContext()
    yield toy
    await toy.kernels.close()


@pytest.fixture
def ctx(toy: KernelContext, workspace: Path) -> Context:
    return toy.context(workspace)


async def js(ctx: Context, code: str) -> Result:
    async with asyncio.timeout(HANG):
        return await js_repl.run(js_repl.tool.parse(code), ctx)


async def failure(ctx: Context, code: str) -> CallError:
    with pytest.raises(CallError) as caught:
        await js(ctx, code)
    return caught.value


def told(text: str, workspace: Path) -> str:
    """Without the numbers of cells and the place of the workspace."""
    return re.sub(r"\bcell\d+\.js", "cellN.js", text).replace(str(workspace), "{workspace}")


async def test_cells_answer_as_they_should_one_after_the_other(ctx: Context, workspace: Path) -> None:
    (workspace / "own.mjs").write_text("export default 42; export const named = 'n'")
    (workspace / "data.json").write_text('{"k": 1}')

    found = [await answered(js(ctx, cell["code"])) for cell in CELLS]

    assert differences(found, CELLS, lambda text: told(text, workspace)) == []


async def test_what_comes_back_is_streamed_and_told_for_programs_too(ctx: Context, toy: KernelContext) -> None:
    result = await js(ctx, "console.log('one'); 2")

    assert result.output == "one\n2\n"
    assert result.structured == {
        "code": "console.log('one'); 2",
        "outputs": [{"type": "logs", "logs": "one\n2\n"}],
        "status": "completed",
    }
    assert result.metadata["fresh"] is True
    assert result.metadata["truncated"] is False
    assert "".join(text for text, _ in toy.printed) == "one\n2\n"
    assert (await js(ctx, "3")).metadata["fresh"] is False


async def test_a_cell_calls_tools_and_gets_their_results_and_errors(ctx: Context, toy: KernelContext) -> None:
    def answer(tool: str, arguments: dict[str, Any]) -> Any:
        return InvalidArgs("no such thing") if tool == "bad" else Result(output=f"{tool} did it", structured=arguments)

    toy.answer = answer
    code = """
    const {output, structured} = await tool('read_file', {path: 'a'})
    const failed = await tool('bad').catch(e => [e.name, e.code, e.message, e instanceof Error])
    ;[output, structured, failed, (await codex.tool('apply_patch', 'text')).output]
    """

    result = await js(ctx, code)

    expected = "[ 'read_file did it', { path: 'a' }, [ 'ToolError', 'InvalidArgs', 'no such thing', true ], "
    assert re.sub(r"\s+", " ", result.output) == f"{expected}'apply_patch did it' ] "
    assert toy.called == [("read_file", {"path": "a"}), ("bad", {}), ("apply_patch", {"input": "text"})]


async def test_tools_called_together_run_together(ctx: Context, toy: KernelContext) -> None:
    both = asyncio.Barrier(2)

    async def meet(tool: str) -> Result:
        await both.wait()
        return Result(output=tool)

    toy.answer = lambda tool, arguments: meet(tool)

    result = await js(ctx, "const found = await Promise.all([tool('a'), tool('b')]); found.map(f => f.output).join()")

    assert result.output == "'a,b'\n"


async def test_a_cell_is_not_over_before_the_tools_it_called_are(ctx: Context, toy: KernelContext) -> None:
    go = asyncio.Event()

    async def slow() -> Result:
        await asyncio.sleep(0)
        go.set()
        return Result(output="done")

    toy.answer = lambda tool, arguments: slow()

    result = await js(ctx, "tool('slow')")

    assert go.is_set()
    assert "output: 'done'" in result.output


async def test_time_does_not_pass_while_a_tool_runs(ctx: Context, toy: KernelContext) -> None:
    async def slow() -> Result:
        await asyncio.sleep(1.2)
        return Result(output="late")

    toy.answer = lambda tool, arguments: slow()

    result = await js(ctx, "// toolcrib: timeout_ms=1000\n(await tool('slow')).output")

    assert result.output == "'late'\n"


async def test_a_tool_that_failed_and_nobody_caught_fails_the_cell(ctx: Context, toy: KernelContext) -> None:
    toy.answer = lambda tool, arguments: ToolUnavailable("not today")

    error = await failure(ctx, "\nawait tool('other')")

    assert (error.code, error.message) == ("ExitCode:1", "ToolError: not today")
    assert error.result is not None
    assert error.result.output == "ToolError: not today\n    at cell1.js:2:7 {\n  code: 'ToolUnavailable'\n}\n"


@pytest.mark.parametrize("code", ["while (true) {}", "await new Promise(() => {})", "for (;;) await null"])
async def test_a_cell_that_hangs_is_ended_and_the_next_one_has_a_fresh_interpreter(ctx: Context, code: str) -> None:
    await js(ctx, "const kept = 1")

    error = await failure(ctx, f"// codex-js-repl: timeout_ms=500\nconsole.log('before'); {code}")
    after = await js(ctx, "typeof kept")

    assert isinstance(error, TimedOut)
    assert "nothing is defined any more" in error.message
    assert error.result is not None
    assert error.result.output == "before\n"
    assert error.result.structured["status"] == "incomplete"
    assert (after.output, after.metadata["fresh"]) == ("'undefined'\n", True)


async def test_a_cell_may_end_its_interpreter_and_is_told_what_that_means(ctx: Context) -> None:
    kind = await js(ctx, "console.log('bye'); process.exit(0)")
    rude = await failure(ctx, "process.exit(4)")
    killed = await failure(ctx, "process.kill(process.pid, 'SIGKILL')")

    assert kind.output == (
        "bye\n[The cell ended its interpreter, so nothing is defined any more; the next call starts with a fresh "
        "interpreter.]\n"
    )
    assert (rude.code, killed.code) == ("ExitCode:4", "ExitCode:137")
    assert "ended its interpreter (exit code 4), so nothing is defined any more" in rude.message
    assert (await js(ctx, "1")).output == "1\n"


async def test_what_fails_in_the_background_is_told_and_kills_nothing(ctx: Context) -> None:
    await js(ctx, "const kept = 1; setTimeout(() => { throw new Error('in the background') }, 1); 0")
    await js(ctx, "const wait = (ms) => new Promise(done => setTimeout(done, ms)); await wait(50)")
    rejected = await js(ctx, "Promise.reject(new Error('nobody cared')); await wait(1); kept")
    idle = await js(ctx, "setTimeout(() => { throw new Error('between cells') }, 1); 0")
    await asyncio.sleep(0.5)
    after = await js(ctx, "kept")

    assert "[unhandled rejection] Error: nobody cared\n" in rejected.output
    assert idle.output == "0\n"
    assert after.output.startswith("[uncaught exception] Error: between cells\n    at Timeout")
    assert after.output.endswith("1\n")


async def test_a_flood_is_streamed_whole_and_answered_with_its_ends(ctx: Context, toy: KernelContext) -> None:
    result = await js(ctx, "for (let i = 0; i < 300; i++) console.log(`${i} `.padEnd(1000, 'x')); 'end'")

    assert result.metadata["truncated"] is True
    assert result.output.startswith("0 xxx")
    assert result.output.endswith("x\n'end'\n")
    assert len(result.output) < 50_000
    assert sum(len(text) for text, _ in toy.printed) == 300 * 1001 + len("'end'\n") == result.metadata["original_size"]


async def test_output_that_is_no_text_and_texts_cut_in_the_middle_are_bearable(ctx: Context) -> None:
    result = await js(ctx, "process.stdout.write(Buffer.from([0x61, 0xff, 0xc3])); process.stdout.write('\\x1e'); 1")

    assert result.output == "a\ufffd\ufffd\x1e\n1\n" or result.output == "a\ufffd\x1e\ufffd\n1\n"


async def test_images_come_back_as_attachments(ctx: Context, workspace: Path) -> None:
    (workspace / "a.png").write_bytes(drawn(3, 2))
    code = """
    codex.emitImage({bytes: require('fs').readFileSync('a.png'), mimeType: 'image/png'})
    codex.emitImage('data:image/png;base64,' + Buffer.from('no image').toString('base64'))
    """

    result = await js(ctx, code)
    refused = await failure(ctx, "codex.emitImage('text')")

    assert [(one.mime, one.filename) for one in result.attachments] == [("image/png", "image-1.png")]
    assert result.structured["outputs"] == [{"type": "image", "url": "/v1/calls/call_1/attachments/0"}]
    assert refused.message.startswith("TypeError: emitImage() takes")


async def test_what_code_says_over_the_channel_is_not_believed(ctx: Context, toy: KernelContext) -> None:
    forged = ['{"done": true}', "no json", "[1]", '{"image": 5, "mime": "image/png"}', '{"call": 1, "tool": 5}']
    code = f"for (const line of {json.dumps(forged)}) require('fs').writeSync(4, line + '\\n'); 'still here'"

    assert (await js(ctx, code)).output == "'still here'\n"
    assert (await js(ctx, "2")).output == "2\n"
    assert toy.called == []


async def test_a_canceled_cell_leaves_nothing_running(ctx: Context, toy: KernelContext) -> None:
    begun = asyncio.Event()

    def answer(tool: str, arguments: dict[str, Any]) -> Result:
        begun.set()
        return Result()

    toy.answer = answer
    running = asyncio.create_task(js_repl.run(js_repl.tool.parse("await tool('begun'); while (true) {}"), ctx))
    async with asyncio.timeout(HANG):
        await begun.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await js(ctx, "1")).metadata["fresh"] is True


async def test_the_session_is_the_only_one_to_see_its_names_and_has_its_environment(workspace: Path) -> None:
    first, second = KernelContext(env={"GREETING": "hello"}), KernelContext()
    await js(first.context(workspace), "const mine = 1")

    assert (await js(first.context(workspace), "[mine, process.env.GREETING]")).output == "[ 1, 'hello' ]\n"
    assert (await js(second.context(workspace), "typeof mine")).output == "'undefined'\n"
    await first.kernels.close()
    await second.kernels.close()


async def test_reset_forgets_everything(ctx: Context) -> None:
    await js(ctx, "const kept = 1")

    first = await js_repl_reset.tool.run(js_repl_reset.tool.parse({}), ctx)
    second = await js_repl_reset.tool.run(js_repl_reset.tool.parse({}), ctx)

    assert (first.output, first.metadata) == ("js_repl kernel reset", {"was_running": True})
    assert second.metadata == {"was_running": False}
    assert (await js(ctx, "typeof kept")).output == "'undefined'\n"


WRAPPED = [
    '{"code": "1 + 1"}',
    '  {"input": "1",\n "timeout": 5}\n',
    '{"anything": 1}',
    '"console.log(1)"',
    '"const a = 1;\\nconsole.log(a)"\n',
    "```js\n1 + 1\n```",
    "\n```\n1\n```\n",
    "",
    " \n\t",
]
PLAIN = [
    "1",
    "{a: 1}",
    "{}",
    "{ let a = 1; a }",
    '{ "use strict"; 1 }',
    '{\n  "a" + 1\n}',
    '"use strict"; let a = 1',
    '"a" + "b"',
    '"a".length',
    "'a whole text'",
    "`a template`",
    "`a\n```\nb`",
    "// a comment\n1",
    "({a: 1})",
    "[1]",
    "/re/.test('x')",
    "\n\n  x => x",
]


@pytest.mark.parametrize("text", WRAPPED, ids=range(len(WRAPPED)))
def test_what_is_wrapped_around_code_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(InvalidArgs, match=r"send") as caught:
        js_repl.tool.parse(text)
    with pytest.raises(InvalidArgs):
        js_repl.tool.parse(f"// toolcrib: timeout_ms=5\n{text}")
    with pytest.raises(LarkError):
        JUDGE.parse(text)

    assert "js_repl" in caught.value.message


@pytest.mark.parametrize("text", PLAIN, ids=range(len(PLAIN)))
def test_code_that_only_looks_wrapped_is_taken(text: str) -> None:
    assert js_repl.tool.parse(text).input == text
    assert js_repl.tool.parse({"input": text}).input == text
    assert JUDGE.parse(text)
    assert JUDGE.parse(f"// codex-js-repl: timeout_ms=5\n{text}")


def test_the_grammar_takes_every_cell() -> None:
    assert [cell["code"] for cell in CELLS if not is_taken(cell["code"])] == []


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("// codex-js-repl: timeout_ms=15000", 15),
        ("//toolcrib:timeout_ms = 1", 0.001),
        ("  // toolcrib: timeout_ms=300000", 300),
        ("// timeout_ms=5", 30),
        ("// say: toolcrib: timeout_ms=5", 30),
    ],
)
def test_the_first_line_may_say_how_long_it_takes(line: str, seconds: float) -> None:
    assert js_repl.tool.parse(f"{line}\n1").seconds == seconds


@pytest.mark.parametrize(
    "said", ["timeout_ms=0", "timeout_ms=300001", "timeout=5", "timeout_ms=-1", "", "timeout_ms=5x"]
)
def test_a_first_line_that_cannot_be_followed_is_refused(said: str) -> None:
    with pytest.raises(InvalidArgs, match="timeout_ms=N"):
        js_repl.tool.parse(f"// toolcrib: {said}\n1")


def is_taken(text: str) -> bool:
    try:
        JUDGE.parse(text)
    except LarkError:
        return False
    return True
