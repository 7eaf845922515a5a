"""Orders of walled processes: what is in them, and above all what is not."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.network_policy import NetworkPolicy
from app.core.sandbox import Backend, Command, Isolation, Network, WindowSize
from app.core.sessions import Profile
from app.sandbox.isolation import apply
from app.sandbox.isolation.planner import PYTHON_PATHS, ProcessLocation, SandboxSettings, SpawnPlanner, network_of
from app.sandbox.process.spawner import Mount

LANDLOCK = Isolation(Backend.LANDLOCK, Profile.WORKSPACE_WRITE, Network.NONE)
BWRAP = replace(LANDLOCK, backend=Backend.BWRAP)
STAND = ProcessLocation(workspace="/w", root="/w", cwd="/w/src", temp_dir="/tmp/own")
ENVIRON = {"PATH": "/usr/bin:/bin", "TOOLCRIB_API_KEY": "tk_secret", "HOME": "/root", "LD_PRELOAD": "/x.so"}
OPEN, LISTED, CLOSED = NetworkPolicy("open"), NetworkPolicy("allowlist", ("example.org",)), NetworkPolicy("disabled")


def planner(**settings: object) -> SpawnPlanner:
    return SpawnPlanner(SandboxSettings(**settings), "/data", environ=ENVIRON)  # type: ignore[arg-type]


def paths(places: tuple[Mount, ...], *, is_writable: bool) -> set[str]:
    return {place.path for place in places if place.is_writable is is_writable}


def test_nothing_of_the_services_environment_comes_along() -> None:
    order = planner().request(Command(argv=("true",)), LANDLOCK, STAND)

    assert order.env == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/w",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": "/tmp/own",
        "USER": order.env["USER"],
        "LOGNAME": order.env["USER"],
        "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLORTERM": "",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GH_PAGER": "cat",
    }


def test_the_commands_own_variables_come_on_top_and_a_terminal_has_colors() -> None:
    command = Command(argv=("true",), env={"PATH": "/mine", "MORE": "1"}, tty=WindowSize())

    order = planner().request(command, LANDLOCK, STAND)

    assert (order.env["PATH"], order.env["MORE"], order.env["TERM"]) == ("/mine", "1", "xterm-256color")
    assert "NO_COLOR" not in order.env
    assert order.has_terminal


def test_the_time_zone_of_the_service_is_passed_on() -> None:
    there = SpawnPlanner(SandboxSettings(), "/data", environ={"TZ": "Europe/Vienna"})

    assert there.request(Command(argv=("date",)), LANDLOCK, STAND).env["TZ"] == "Europe/Vienna"


def test_in_its_own_tmp_a_process_uses_that() -> None:
    order = planner().request(Command(argv=("true",)), BWRAP, replace(STAND, temp_dir=None))

    assert order.env["TMPDIR"] == "/tmp"


def test_the_system_is_seen_and_homes_and_sockets_are_not() -> None:
    enclosure = planner().request(Command(argv=("true",)), BWRAP, STAND).isolation

    assert enclosure is not None
    seen = paths(enclosure.mounts, is_writable=False)
    assert {"/usr", "/etc"} <= seen
    assert seen.isdisjoint({"/", "/root", "/home", "/run", "/var/run", "/tmp", "/var", "/dev", "/sys"})
    assert paths(enclosure.mounts, is_writable=True) == {"/w"}


def test_our_own_programs_have_our_own_interpreter() -> None:
    enclosure = planner().request(Command(argv=("true",), has_channel=True), BWRAP, STAND).isolation

    assert enclosure is not None
    assert any(os.path.realpath(sys.base_prefix).startswith(place.path) for place in enclosure.mounts)


def test_commands_have_it_only_where_they_can_come_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "closed_folders", lambda paths, *_: [path for path in paths if path in PYTHON_PATHS])
    monkeypatch.setattr(SpawnPlanner, "identity", (61_100, 61_100))

    enclosure = planner(read_roots=(Path("/usr/share"),)).request(Command(argv=("true",)), BWRAP, STAND).isolation

    assert enclosure is not None
    real = {os.path.realpath(path) for path in PYTHON_PATHS}
    assert real.isdisjoint(place.path for place in enclosure.mounts)


def test_read_only_leaves_nothing_to_write_also_not_in_extra_roots() -> None:
    extras = (Mount(path="/extra", is_writable=True), Mount(path="/other"))
    there = SpawnPlanner(SandboxSettings(), "/data", extras, ENVIRON)

    wide = there.isolation_spec(LANDLOCK, STAND)
    narrow = there.isolation_spec(replace(LANDLOCK, profile=Profile.READ_ONLY), STAND)

    assert paths(wide.mounts, is_writable=True) == {"/w", "/extra"}
    assert paths(narrow.mounts, is_writable=True) == set()
    assert {"/w", "/extra", "/other"} <= paths(narrow.mounts, is_writable=False)


def test_the_operators_read_roots_are_seen_with_links_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    seen = planner(read_roots=(tmp_path / "link", tmp_path / "missing")).system

    assert str(tmp_path / "real") in {place.path for place in seen}
    assert str(tmp_path / "missing") not in {place.path for place in seen}


def test_a_workspace_is_seen_by_both_its_names() -> None:
    enclosure = planner().isolation_spec(LANDLOCK, replace(STAND, root="/by-link"))

    assert paths(enclosure.mounts, is_writable=True) == {"/w", "/by-link"}


@pytest.mark.parametrize(
    ("data_dir", "workspace", "hidden"),
    [
        ("/data", "/w", ()),
        ("/w/.toolcrib", "/w", ("/w/.toolcrib",)),
        ("/data", "/data/workspace", ()),
        ("/opt/toolcrib/data", "/w", ("/opt/toolcrib/data",)),
    ],
)
def test_the_data_directory_is_hidden_where_it_would_be_seen(
    data_dir: str, workspace: str, hidden: tuple[str, ...]
) -> None:
    there = SpawnPlanner(SandboxSettings(), data_dir, environ=ENVIRON)

    assert there.isolation_spec(BWRAP, replace(STAND, workspace=workspace, root=workspace)).hidden == hidden


def test_limits_are_the_operators_and_a_command_can_only_narrow_its_memory() -> None:
    there = planner(memory=1000, file_size=2000, open_files=30, cpu_seconds=40, processes=5)

    wide = there.request(Command(argv=("true",), memory=4000), LANDLOCK, STAND)
    narrow = there.request(Command(argv=("true",), memory=100), LANDLOCK, STAND)

    assert wide.limits == {"AS": 4000, "FSIZE": 2000, "NOFILE": 30, "CPU": 40, "CORE": 0} | wide_crowd()
    assert (wide.memory, wide.processes) == (1000, 5)
    assert (narrow.memory, narrow.limits["AS"]) == (100, 400)


def wide_crowd() -> dict[str, int]:
    """Only somebody of their own can be counted by the kernel."""
    return {"NPROC": 20} if os.geteuid() == 0 else {}


def test_root_makes_processes_somebody_else_and_nobody_else_can() -> None:
    given, own = planner(uid=4242).identity, planner().identity

    assert (given, own) == (((4242, 4242), (61_100, 61_100)) if os.geteuid() == 0 else (None, None))


@pytest.mark.parametrize(
    ("mode", "policies", "network"),
    [
        ("none", (OPEN, LISTED), "none"),
        ("none", (None, None), "none"),
        ("full", (None, None), "full"),
        ("full", (OPEN, None), "full"),
        ("full", (None, LISTED), "allowlist"),
        ("full", (LISTED, OPEN), "allowlist"),
        ("full", (LISTED, CLOSED), "none"),
        ("full", (CLOSED, None), "none"),
        ("allowlist", (None, LISTED), "allowlist"),
        ("allowlist", (None, None), "none"),
        ("allowlist", (OPEN, OPEN), "none"),
        ("allowlist", (LISTED, CLOSED), "none"),
    ],
)
def test_the_narrowest_of_all_that_is_said_about_the_network_counts(
    mode: str, policies: tuple[NetworkPolicy | None, ...], network: str
) -> None:
    assert network_of(Network(mode), policies) is Network(network)
