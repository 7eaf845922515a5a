"""Extra roots through the whole line: what is asked, what runs, and what does not even start."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from app.config import ExtraRootSetting, RuleSetting
from app.core.errors import Misconfigured
from app.core.files import touching
from app.core.ports import Change
from app.core.results import Result
from app.core.rules import Action, Rule
from app.core.sessions import Session
from app.core.tools import Context, Effect, Tool, typed
from app.dispatch.live_calls import LiveCall
from tests.support.services import ADMIN, Crib, until
from tests.support.toy_tools import Toys


class PathArgs(BaseModel, extra="forbid"):
    path: str


async def show(args: PathArgs, ctx: Context) -> Result:
    read = await ctx.in_thread(lambda stop: ctx.workspace.load(args.path, approved=ctx.approved))
    return Result(output=read.data.decode())


async def mark(args: PathArgs, ctx: Context) -> Result:
    def work() -> None:
        before = ctx.workspace.stamp(args.path, approved=ctx.approved)
        ctx.workspace.commit([Change(path=args.path, data=b"marked", before=before)], approved=ctx.approved)

    await ctx.in_thread(lambda stop: work())
    return Result(output="marked")


async def look(args: PathArgs, ctx: Context) -> Result:
    return Result(output=" ".join(entry.name for entry in ctx.workspace.scan(args.path, approved=ctx.approved)))


def tool(name: str, run: Any, permission: str) -> Tool:
    return typed(
        PathArgs,
        name=name,
        description=f"The toy {name}.",
        effect=Effect.WRITE if permission == "edit" else Effect.READ,
        needs=lambda args, scope: touching(scope, permission, [args.path]),
        run=run,
        permission=permission,
    )


@pytest.fixture
def world(tmp_path: Path) -> Path:
    for name in ("ws/f", "lib/f", "lib/deep/f", "out/f", "other/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture
async def crib(world: Path, data_dir: Path) -> AsyncIterator[Crib]:
    toys = Toys()
    toys.more = [tool("show", show, "read"), tool("mark", mark, "edit"), tool("look", look, "read")]
    roots = [ExtraRootSetting(path=world / "lib"), ExtraRootSetting(path=world / "out", access="write")]
    crib = Crib(data_dir, toys, workspace=world / "ws", extra_roots=roots)
    yield crib
    await crib.close()


async def asked(crib: Crib, live: LiveCall) -> list[tuple[str, str]]:
    await until(lambda: live.approval.ask is not None and live.call.waiting is not None)
    assert live.approval.ask is not None
    return [(need.permission, need.pattern) for need in live.approval.ask.needs]


async def test_an_extra_root_is_asked_for_by_its_folder(crib: Crib, world: Path) -> None:
    await crib.open()

    calls = {
        path: await asked(crib, crib.submit(name, {"path": f"{world}/{path}"}))
        for name, path in (("show", "lib/deep/f"), ("look", "lib"), ("mark", "out/new/x"))
    }

    assert calls == {
        "lib/deep/f": [("external_directory", f"{world}/lib/deep")],
        "lib": [("external_directory", f"{world}/lib")],
        "out/new/x": [("external_directory", f"{world}/out/new")],
    }


async def test_a_rule_lets_it_run_for_the_service_and_for_every_session(crib: Crib, world: Path) -> None:
    crib.settings["rules"] = [RuleSetting(permission="external_directory", pattern=f"{world}/*", action=Action.ALLOW)]
    await crib.open()
    places = crib.services.workspaces
    own = Session("admin", "own", workspace=places.make("admin", "own"))

    for session in (ADMIN, own):
        ends = {}
        for name, path in (("show", "lib/deep/f"), ("look", "lib"), ("mark", "out/f"), ("mark", "lib/f")):
            live = crib.services.dispatcher.submit(crib.request(name, {"path": f"{world}/{path}"}), session)
            view = await crib.ended(live)
            ends[f"{name} {path}"] = view["error"]["code"] if view["error"] else view["result"]["output"]
        assert ends == {
            "show lib/deep/f": "lib/deep/f",
            "look lib": "deep f",
            "mark out/f": "marked",
            "mark lib/f": "EROFS",
        }

    assert ((world / "out/f").read_text(), (world / "lib/f").read_text()) == ("marked", "lib/f")


async def test_what_is_in_no_root_and_the_records_are_never_asked_for(crib: Crib, world: Path) -> None:
    crib.settings["workspace"] = world
    crib.settings["extra_roots"] = []
    await crib.open()
    session = Session("admin", "s", rules=(Rule("*", "*", Action.ASK),), is_trusted=True)

    for path in ("/etc/passwd", "../x", "data/toolcrib.db", "data/new", f"{world}/data/admin.key"):
        for name in ("show", "mark", "look"):
            view = await crib.ended(crib.services.dispatcher.submit(crib.request(name, {"path": path}), session))
            assert view["error"]["code"] == "OutsideWorkspace"

    assert crib.rows("SELECT * FROM asks") == []
    assert (await crib.run("look", {"path": "."}))["result"]["output"].split()[0] == "data"


@pytest.mark.parametrize("path", ["nope", "data", "."])
async def test_a_service_does_not_start_with_an_extra_root_that_cannot_be(crib: Crib, world: Path, path: str) -> None:
    crib.settings["extra_roots"] = [ExtraRootSetting(path=world / path)]

    with pytest.raises(Misconfigured, match=r"^extra_roots names [^\n]*\.$"):
        await crib.open()
