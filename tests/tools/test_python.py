"""python with a real interpreter, with IPython and without: what is defined stays, values, images, errors, time."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CallError, InvalidArgs, ResourceLimit, TimedOut
from app.core.repl import Cell, run_cell
from app.core.results import Result, data_of
from app.core.tools import Context
from app.tools.exec import python, python_reset
from tests.support.repl_kernels import GIB, HANG, KernelContext, answered, differences, open_kernels

CELLS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "scenarios" / "python_cells.json").read_text())
PLAIN = {"TOOLCRIB_PLAIN_PYTHON": "1"}
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where matplotlib keeps what it found out about fonts, which takes it a while."""
    return str(tmp_path_factory.mktemp("matplotlib"))


@pytest.fixture
async def toy() -> AsyncIterator[KernelContext]:
    toy = KernelContext()
    yield toy
    await toy.kernels.close()


@pytest.fixture
def ctx(toy: KernelContext, workspace: Path) -> Context:
    return toy.context(workspace)


async def py(ctx: Context, code: str, **more: Any) -> Result:
    async with asyncio.timeout(HANG):
        return await python.run(python.tool.parse({"code": code} | more), ctx)


async def failure(ctx: Context, code: str, **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await py(ctx, code, **more)
    return caught.value


def told(text: str) -> str:
    """Without the numbers of cells, and without the marks below a toy, which each Python sets its own way."""
    return re.sub(r"(?m)^[ ~^]+\n", "", re.sub(r"<cell \d+>", "<cell N>", text))


def images(result: Result) -> list[bytes]:
    return [data_of(one.url) or b"" for one in result.attachments]


@pytest.mark.parametrize("env", [{}, PLAIN], ids=["ipython", "plain"])
async def test_cells_answer_as_they_should_one_after_the_other(
    ctx: Context, toy: KernelContext, env: dict[str, str]
) -> None:
    toy.env = env

    found = [await answered(py(ctx, cell["code"])) for cell in CELLS]
    shell = await py(ctx, "'get_ipython' in globals()")

    assert differences(found, CELLS, told) == []
    assert shell.output == f"{not env}\n"


@pytest.mark.parametrize("env", [{}, PLAIN], ids=["ipython", "plain"])
async def test_figures_and_images_come_back_as_attachments(
    ctx: Context, toy: KernelContext, env: dict[str, str], fonts: str
) -> None:
    toy.env = env | {"MPLCONFIGDIR": fonts}

    shown = await py(
        ctx, "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\nplt.plot([2, 1]); print('two')"
    )
    value = await py(ctx, "figure, axes = plt.subplots()\naxes.bar([1], [2])\nfigure")
    again = await py(ctx, "figure")
    picture = await py(ctx, "from PIL import Image\nImage.new('RGB', (4, 4))")
    displayed = await py(ctx, "display(Image.new('L', (2, 2))); display(figure)")
    broken = await failure(ctx, "plt.plot([1]); 1 / 0")

    assert (shown.output, len(shown.attachments)) == ("two\n", 2)
    assert shown.structured["outputs"] == [
        {"type": "logs", "logs": "two\n"},
        {"type": "image", "url": "/v1/calls/call_1/attachments/0"},
        {"type": "image", "url": "/v1/calls/call_1/attachments/1"},
    ]
    assert images(shown)[0] != images(shown)[1]
    assert (value.output, len(value.attachments)) == ("Figure(640x480)\n", 1)
    assert images(again) == images(value)
    assert "PIL.Image.Image" in picture.output
    assert len(displayed.attachments) == 2
    assert broken.result is not None
    everything = [*images(shown), *images(value), *images(picture), *images(displayed), *images(broken.result)]
    assert len(everything) == 7
    assert all(data.startswith(PNG) for data in everything)


async def test_more_images_than_anybody_looks_at_are_left_out(ctx: Context) -> None:
    code = "from PIL import Image\nfor n in range(20): display(Image.new('L', (1, 1), n))"

    result = await py(ctx, code)

    assert len(result.attachments) == 16
    assert result.output == "[more than 16 images; the others are not shown]\n"


async def test_magics_and_shell_commands_work_where_ipython_is(ctx: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("hello")

    assert (await py(ctx, "!cat a.txt")).output == "hello"
    assert (await py(ctx, "found = !ls\nfound")).output == "['a.txt']\n"
    assert (await py(ctx, "%%bash\necho $((1 + 2))")).output == "3\n"
    assert (await py(ctx, "%matplotlib inline")).output == ""
    assert (await failure(ctx, "%nonsense")).message.endswith("Line magic function `%nonsense` not found.")


async def test_a_cell_over_its_time_is_interrupted_and_what_was_defined_stays(ctx: Context) -> None:
    await py(ctx, "kept = 1")

    error = await failure(ctx, "import time\nprint('before')\ntime.sleep(600)", timeout_ms=500)
    after = await py(ctx, "kept")

    assert isinstance(error, TimedOut)
    assert "what was defined is still there" in error.message
    assert error.result is not None
    assert told(error.result.output) == (
        "before\nTraceback (most recent call last):\n"
        '  File "<cell N>", line 3, in <module>\n    time.sleep(600)\nKeyboardInterrupt\n'
    )
    assert (after.output, after.metadata["fresh"]) == ("1\n", False)


async def test_a_cell_that_will_not_be_interrupted_is_ended_with_its_interpreter(ctx: Context) -> None:
    await py(ctx, "kept = 1")

    deaf = "import signal; signal.signal(signal.SIGIO, signal.SIG_IGN)"
    error = await failure(ctx, f"{deaf}\nwhile True: pass", timeout_ms=500)
    after = await py(ctx, "'kept' in globals()")

    assert isinstance(error, TimedOut)
    assert "nothing is defined any more" in error.message
    assert (after.output, after.metadata["fresh"]) == ("False\n", True)


async def test_a_canceled_cell_is_interrupted(ctx: Context, toy: KernelContext) -> None:
    await py(ctx, "kept = 1")
    running = asyncio.create_task(python.run(python.Args(code="print('go', flush=True)\nwhile True: pass"), ctx))
    async with asyncio.timeout(HANG):
        while ("go\n", "stdout") not in toy.printed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await py(ctx, "kept")).output == "1\n"


async def test_an_interpreter_that_was_killed_between_cells_is_replaced_and_the_model_is_told(ctx: Context) -> None:
    pid = int((await py(ctx, "import os; kept = 1; os.getpid()")).output)
    os.kill(pid, signal.SIGKILL)
    await gone(pid)

    after = await py(ctx, "'kept' in globals()")

    assert after.output == ("[The interpreter had ended, so what was defined in it is gone.]\nFalse\n")
    assert (await py(ctx, "2")).output == "2\n"


async def test_a_cell_may_end_its_interpreter(ctx: Context) -> None:
    error = await failure(ctx, "import os; print('bye', flush=True); os._exit(7)")

    assert (error.code, error.result and error.result.output) == ("ExitCode:7", "bye\n")
    assert "ended its interpreter (exit code 7), so nothing is defined any more" in error.message


async def test_a_copy_of_the_interpreter_answers_nothing(ctx: Context) -> None:
    forked = await py(ctx, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'once'")

    assert forked.output == "'once'\n"
    assert (await py(ctx, "2")).output == "2\n"


async def test_a_flood_is_streamed_whole_and_answered_with_its_ends(ctx: Context, toy: KernelContext) -> None:
    result = await py(ctx, "for n in range(2000): print(n, 'x' * 1000)")

    assert result.metadata["truncated"] is True
    assert (result.output[:4], result.output[-3:]) == ("0 xx", "xx\n")
    assert len(result.output) < 50_000
    assert sum(len(text) for text, _ in toy.printed) == result.metadata["original_size"] == 2_010_890


async def test_more_memory_starts_it_anew_and_too_much_is_refused(workspace: Path) -> None:
    toy = KernelContext(kernels=open_kernels(memory=4 * GIB))
    ctx = toy.context(workspace)
    await py(ctx, "kept = 1")

    same = await py(ctx, "kept", memory_limit="1g")
    more = await py(ctx, "'kept' in globals()", memory_limit="4g")
    less = await py(ctx, "5", memory_limit="1g")
    refused = await failure(ctx, "6", memory_limit="16g")
    await toy.kernels.close()

    assert same.output == "1\n"
    assert more.output == (
        "[The interpreter was restarted to have more memory, so what was defined in it is gone.]\nFalse\n"
    )
    assert less.metadata["fresh"] is False
    assert isinstance(refused, InvalidArgs)
    assert "at most 4g of memory" in refused.message


async def test_an_interpreter_that_takes_too_much_memory_is_ended(ctx: Context, toy: KernelContext) -> None:
    toy.env = PLAIN
    greedy = "print('before', flush=True)\nkept = []\nwhile True: kept.append(b'x' * 10_000_000)"
    cell = Cell(kind="python", code=greedy, seconds=HANG, more_time="", memory=96 * 1024**2)

    with pytest.raises(ResourceLimit, match="took more memory than it may and was ended") as caught:
        await run_cell(ctx, cell)

    assert caught.value.details == {"limit": "memory"}
    assert caught.value.result is not None
    assert caught.value.result.output == "before\n"
    assert (await py(ctx, "1")).metadata["fresh"] is True


async def test_it_keeps_no_files_but_in_its_temporary_folder(ctx: Context, toy: KernelContext, workspace: Path) -> None:
    toy.env = {"TMPDIR": str(workspace / "tmp"), "HOME": str(workspace)}
    (workspace / "tmp").mkdir()

    places = await py(ctx, "import os; [os.environ['MPLCONFIGDIR'], get_ipython().ipython_dir, os.environ['HOME']]")
    await py(ctx, "%history\n%whos")

    assert places.output.count(f"'{workspace}/tmp/") == 2
    assert os.listdir(workspace) == ["tmp"]


async def test_reset_forgets_everything(ctx: Context) -> None:
    await py(ctx, "kept = 1")

    first = await python_reset.tool.run(python_reset.tool.parse({}), ctx)
    second = await python_reset.tool.run(python_reset.tool.parse({}), ctx)

    assert (first.output, first.metadata) == ("python kernel reset", {"was_running": True})
    assert second.metadata == {"was_running": False}
    assert (await py(ctx, "'kept' in globals()")).output == "False\n"


@pytest.mark.parametrize(
    ("raw", "args"),
    [
        ({"code": "1"}, {"code": "1"}),
        ({"code": "1", "container": {"type": "auto", "memory_limit": "4g"}}, {"code": "1", "memory_limit": "4g"}),
        ({"code": "1", "container": "cntr_1"}, {"code": "1"}),
        ({"type": "code_interpreter", "code": "1", "timeout_ms": "5"}, {"code": "1", "timeout_ms": 5}),
    ],
    ids=["code", "container", "reference", "type"],
)
def test_it_can_be_called_as_the_hosted_interpreter_is(raw: dict[str, Any], args: dict[str, Any]) -> None:
    [alias] = python.tool.aliases
    assert alias.adapt is not None

    assert (alias.name, python.tool.parse(alias.adapt(raw))) == ("code_interpreter", python.Args(**args))


@pytest.mark.parametrize("raw", [{"code": ""}, {"code": "1", "timeout_ms": 0}, {"code": "1", "memory_limit": "3g"}, {}])
def test_what_it_cannot_take_is_said(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgs, match="python cannot take these arguments"):
        python.tool.parse(raw)


async def gone(pid: int) -> None:
    async with asyncio.timeout(HANG):
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
