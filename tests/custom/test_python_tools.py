"""Tools of files and packages: loaded, reloaded, and one broken file costs only itself."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import service as app_service
from app.core.errors import Misconfigured
from app.custom import python_tools
from app.sandbox.files.workspaces import python_files
from tests.support.cli import key_of, start, stop, url_of
from tests.support.services import HANG, RunningService, listening
from tests.support.toy_tools import Toys

TOOL = """
from pydantic import BaseModel
from app.sdk import ToolContext, define_tool

class Args(BaseModel):
    text: str = ""

@define_tool("{name}", "{about}", Args, lane="none")
async def {name}(args: Args, ctx: ToolContext) -> str:
    return "{answer}"
"""


def write(folder: Path, file: str, name: str, answer: str = "fine", about: str = "A tool of a file.") -> None:
    (folder / file).write_text(TOOL.format(name=name, answer=answer, about=about))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tools"
    made.mkdir()
    return made


@pytest.fixture
async def service(data_dir: Path, toys: Toys, folder: Path) -> AsyncIterator[RunningService]:
    write(folder, "first.py", "first_tool")
    service = RunningService(data_dir, toys, tools_dir=folder)
    await service.open()
    yield service
    await service.close()


async def reload(service: RunningService) -> dict[str, Any]:
    answer = await service.client.post("/v1/tools/reload")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def output(service: RunningService, tool: str) -> str:
    body = (await service.client.post("/v1/calls", json={"tool": tool})).json()
    return str(body["result"]["output"] if body["result"] else body["error"]["code"])


async def names(service: RunningService) -> set[str]:
    listed = (await service.client.get("/v1/tools", params={"source": "file"})).json()["data"]
    return {tool["name"] for tool in listed}


def test_python_files_are_found_in_their_order_and_private_ones_left_out(folder: Path) -> None:
    for name in ("b.py", "a.py", "_shared.py", "notes.txt"):
        (folder / name).touch()

    assert python_files(folder) == [folder / "a.py", folder / "b.py"]


def test_every_tool_of_a_file_is_found_once_and_imported_ones_are_not_its_own(folder: Path) -> None:
    (folder / "many.py").write_text(
        TOOL.format(name="one_tool", answer="1", about="x")
        + TOOL.format(name="two_tool", answer="2", about="x")
        + "again = two_tool\nfrom app.tools import read_file\nfrom tests.scenarios import weather_tool\n"
        + "from tests.scenarios.weather_tool import get_weather\n"
    )

    loaded = python_tools.load(python_files(folder))

    assert [(file, tool.name, tool.source) for file, tool in loaded.found] == [
        ("many.py", "one_tool", "file"),
        ("many.py", "two_tool", "file"),
    ]
    assert loaded.failed == []


def test_a_file_is_a_module_of_its_own_that_classes_in_it_can_be_found_by(folder: Path) -> None:
    (folder / "classes.py").write_text(
        "from __future__ import annotations\nimport dataclasses, sys, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: typing.ClassVar[int] = 1\n    y: Other | None = None\n"
        "class Other: pass\nassert sys.modules[__name__].Point is Point\nassert __file__.endswith('classes.py')\n"
        + TOOL.format(name="one_tool", answer="1", about="x").replace("from __future__ import annotations", "")
    )

    loaded = python_tools.load(python_files(folder))

    assert loaded.failed == []
    assert not list(folder.glob("**/*.pyc")), "nothing is left in the operator's folder"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("x = 1\n", "No tool is defined in it."),
        (
            "from app.sdk import define_tool\ndefine_tool('a', 'x', object)\n",
            "ValueError: 'a' is not a valid tool name",
        ),
    ],
)
def test_a_broken_file_is_reported_and_costs_only_itself(folder: Path, source: str, reason: str) -> None:
    (folder / "broken.py").write_text(source)
    write(folder, "fine.py", "fine_tool")

    loaded = python_tools.load(python_files(folder))

    [failed] = loaded.failed
    assert failed.file == "broken.py"
    assert failed.reason.startswith(reason)
    assert [tool.name for _, tool in loaded.found] == ["fine_tool"]


def test_a_change_that_follows_quickly_is_seen(folder: Path) -> None:
    path = folder / "quick.py"
    write(folder, "quick.py", "quick_tool", about="one")
    at = path.stat()

    first = python_tools.load([path])
    write(folder, "quick.py", "quick_tool", about="two")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    second = python_tools.load([path])

    assert [loaded.found[0].tool.description for loaded in (first, second)] == ["one", "two"]


def test_packages_offer_tools_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "shop-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[toolcrib.tools]\nmodule = toolcrib_shop\none = toolcrib_other:other_tool\n"
        "broken = toolcrib_nowhere\nodd = toolcrib_shop:Args\n"
    )
    write(tmp_path, "toolcrib_shop.py", "shop_tool")
    write(tmp_path, "toolcrib_other.py", "other_tool")
    monkeypatch.syspath_prepend(tmp_path)

    loaded = python_tools.load([])

    assert [(file, tool.name, tool.source) for file, tool in loaded.found] == [
        ("module (toolcrib_shop)", "shop_tool", "package"),
        ("one (toolcrib_other:other_tool)", "other_tool", "package"),
    ]
    assert [tuple(failed) for failed in loaded.failed] == [
        ("broken (toolcrib_nowhere)", "ModuleNotFoundError: No module named 'toolcrib_nowhere'"),
        ("odd (toolcrib_shop:Args)", "It is no tool, and no module that defines one."),
    ]
    for name in ("toolcrib_shop", "toolcrib_other"):
        monkeypatch.delitem(sys.modules, name)


async def test_files_are_loaded_at_start_and_anew_when_asked(service: RunningService, folder: Path) -> None:
    assert await output(service, "first_tool") == "fine"
    write(folder, "first.py", "first_tool", "better")
    write(folder, "second.py", "second_tool")
    assert await output(service, "first_tool") == "fine"

    assert await reload(service) == {"loaded": ["first_tool", "second_tool"], "failed": []}
    assert await output(service, "first_tool") == "better"
    (folder / "second.py").unlink()
    (folder / "first.py").write_text("broken(")

    assert await reload(service) == {
        "loaded": [],
        "failed": [{"file": "first.py", "reason": "SyntaxError: '(' was never closed (first.py, line 1)"}],
    }
    assert await names(service) == set()
    assert await output(service, "first_tool") == "UnknownTool"


async def test_a_name_that_is_taken_costs_only_the_tool_that_wants_it(service: RunningService, folder: Path) -> None:
    write(folder, "a_thief.py", "echo")
    write(folder, "b_early.py", "shared_tool", "early")
    write(folder, "c_late.py", "shared_tool", "late")

    body = await reload(service)

    assert body == {
        "loaded": ["first_tool", "shared_tool"],
        "failed": [
            {"file": "a_thief.py", "reason": "echo is the name of a tool already."},
            {"file": "c_late.py", "reason": "shared_tool is the name of a tool already."},
        ],
    }
    assert await output(service, "shared_tool") == "early"
    assert await output(service, "echo") == ""


async def test_a_call_that_runs_goes_on_with_the_tool_it_has(service: RunningService, folder: Path) -> None:
    (folder / "slow.py").write_text(
        TOOL.format(name="slow_tool", answer="old", about="x").replace(
            "    return", "    ctx.metadata(title='started')\n    import asyncio\n    await GO.wait()\n    return"
        )
        + "import asyncio\nGO = asyncio.Event()\n"
    )
    await reload(service)
    [module] = [module for module in list(sys.modules.values()) if hasattr(module, "slow_tool")]
    live = service.submit("slow_tool", {})
    await live.wait_open()
    async with listening(service.client, f"/v1/calls/{live.call.id}/events") as stream:
        await stream.until("call.progress")
    write(folder, "slow.py", "slow_tool", "new")

    body = await reload(service)
    new = await output(service, "slow_tool")
    module.GO.set()

    assert body["failed"] == []
    assert new == "new"
    assert (await service.ended(live))["result"]["output"] == "old"


async def test_everybody_with_a_key_is_told_once_what_changed(service: RunningService, folder: Path) -> None:
    await service.client.post("/v1/keys", json={"principal": "ann"})
    gone = (await service.client.post("/v1/keys", json={"principal": "gone"})).json()
    await service.client.delete(f"/v1/keys/{gone['id']}")
    write(folder, "first.py", "first_tool", about="Other words.")
    write(folder, "second.py", "second_tool")

    await reload(service)
    await reload(service)
    (folder / "first.py").unlink()
    await reload(service)

    told = [event for event in service.events() if event["type"] == "tools.changed"]
    assert [(event["principal"], event["session"], json.loads(event["data"])) for event in told] == [
        (who, "default", data)
        for data in (
            {"added": ["second_tool"], "removed": [], "changed": ["first_tool"]},
            {"added": [], "removed": ["first_tool"], "changed": []},
        )
        for who in ("admin", "ann")
    ]


async def test_only_an_admin_may_have_code_executed(service: RunningService) -> None:
    scopes = ["calls:run", "calls:read", "tools:write", "rules:write", "secrets:write"]
    key = (await service.client.post("/v1/keys", json={"principal": "ann", "scopes": scopes})).json()

    async with service.client_of(key["token"]) as ann:
        assert (await ann.post("/v1/tools/reload")).status_code == 403


async def test_a_folder_that_is_not_there_stops_a_start_and_is_reported_later(
    data_dir: Path, toys: Toys, folder: Path
) -> None:
    service = RunningService(data_dir, toys, tools_dir=folder / "missing")
    with pytest.raises(Misconfigured, match=r"tools_dir is .*missing, and there is no such folder"):
        await app_service.Service(service._settings(), toys.tools).open()
    (folder / "missing").mkdir()
    await service.open()
    (folder / "missing").rmdir()

    body = await reload(service)
    await service.close()

    assert body == {"loaded": [], "failed": [{"file": str(folder / "missing"), "reason": "There is no such folder."}]}


async def test_a_reason_is_told_without_secrets(service: RunningService, folder: Path) -> None:
    await service.client.put("/v1/secrets/TOKEN", json={"value": "canary-in-the-coal-mine"})
    (folder / "leaky.py").write_text("raise RuntimeError('canary-in-the-coal-mine')")

    assert (await reload(service))["failed"] == [{"file": "leaky.py", "reason": "RuntimeError: [redacted]"}]


async def test_reloads_that_come_together_take_turns(service: RunningService, folder: Path) -> None:
    for number in range(5):
        write(folder, f"more{number}.py", f"more_{number}")

    async with asyncio.timeout(HANG):
        bodies = await asyncio.gather(*(reload(service) for _ in range(5)))

    assert all(body == bodies[0] for body in bodies)
    assert len(await names(service)) == 6


def test_a_hangup_signal_reloads(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (tmp_path / "toolcrib.toml").write_text('tools_dir = "tools"\n')
    process, announced = start(tmp_path)
    try:
        headers = {"Authorization": f"Bearer {key_of(tmp_path)}"}
        with httpx.Client(base_url=url_of(announced), headers=headers, timeout=HANG, trust_env=False) as client:
            before = client.get("/v1/tools/late_tool").status_code
            write(folder, "late.py", "late_tool", "here")
            with client.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as events:
                lines = events.iter_lines()
                assert next(lines) == ": connected"
                process.send_signal(signal.SIGHUP)
                assert any(line == "event: tools.changed" for line in lines)
            body = client.post("/v1/calls", json={"tool": "late_tool"}).json()
    finally:
        code = stop(process)

    assert (before, body["result"]["output"], code) == (404, "here", 0)
