"""Bubblewrap: what it is told, and what is then seen of the world."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.sandbox.isolation import bubblewrap
from app.sandbox.isolation.bubblewrap import Bind, MountPlan
from app.sandbox.process.spawner import IsolationSpec, Mount, SpawnRequest
from tests.sandbox.isolation_cases import BWRAP, CANARY, IS_ROOT, PATH, WHO, House, opened

needs_bwrap = pytest.mark.skipif(not os.path.exists(BWRAP), reason="bwrap is not installed")
needs_git = pytest.mark.skipif(shutil.which("git", path=PATH) is None, reason="git is not installed")


@pytest.fixture
def house() -> Iterator[House]:
    with opened(WHO[0]) as house:
        yield house


def told(enclosure: IsolationSpec, world: MountPlan, **changes: object) -> list[str]:
    order = replace(SpawnRequest(argv=("true",), env={}, cwd="/w", isolation=enclosure), **changes)  # type: ignore[arg-type]
    return bubblewrap.bwrap_arguments(order, enclosure, world)


def mounted(given: list[str]) -> list[str]:
    """Where something is mounted, in order."""
    kinds = {"--bind": 2, "--ro-bind": 2, "--bind-fd": 2, "--ro-bind-fd": 2, "--symlink": 2}
    kinds |= {"--tmpfs": 1, "--dev": 1, "--proc": 1}
    return [given[index + kinds[word]] for index, word in enumerate(given) if word in kinds]


PLAIN = IsolationSpec(backend="bwrap")


def test_parents_are_mounted_first_and_what_must_not_grow_is_closed_last() -> None:
    world = MountPlan([Bind("/w/deep/place", True, 7), Bind("/usr"), Bind("/w", True, 6)])
    world.links, world.covered, world.masked = [("/bin", "usr/bin")], ["/w/deep"], ["/w/file"]

    given = told(PLAIN, world)

    order = [mount.count("/") for mount in mounted(given)]
    assert order == sorted(order)
    assert set(mounted(given)) == {
        *("/dev", "/proc", "/tmp", "/run", "/var/tmp", "/dev/shm"),
        *("/usr", "/bin", "/w", "/w/deep", "/w/deep/place", "/w/file"),
    }
    assert given[-8:] == ["--remount-ro", "/", "--remount-ro", "/dev", "--remount-ro", "/w/deep", "--chdir", "/w"]


def test_what_is_written_is_bound_by_its_handle_and_the_rest_cannot_be_written() -> None:
    given = told(PLAIN, MountPlan([Bind("/w", True, 6), Bind("/usr")]))

    assert given[given.index("--bind-fd") :][:3] == ["--bind-fd", "6", "/w"]
    assert given[given.index("--ro-bind") :][:3] == ["--ro-bind", "/usr", "/usr"]
    assert "--bind" not in given


@pytest.mark.parametrize(("network", "proxy"), [("none", None), ("allowlist", 0), ("full", None)])
def test_only_without_a_network_bwrap_makes_one(network: str, proxy: int | None) -> None:
    given = told(replace(PLAIN, network=network, proxy=proxy), MountPlan([]))  # type: ignore[arg-type]

    assert ("--unshare-net" in given) == (network == "none")
    assert {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--cap-drop"} <= set(given)


def test_what_a_version_does_not_have_is_not_said() -> None:
    assert "--disable-userns" not in told(PLAIN, MountPlan([]))
    assert "--disable-userns" in told(replace(PLAIN, options=("--disable-userns",)), MountPlan([]))


def test_a_terminal_is_not_taken_away_by_a_session_of_bwraps() -> None:
    assert "--new-session" in told(PLAIN, MountPlan([]))
    assert "--new-session" not in told(PLAIN, MountPlan([]), has_terminal=True)


def test_symlinks_on_the_way_are_made_again_and_shown_places_not_bound_twice(tmp_path: Path) -> None:
    for name in ("real/inner", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/out").symlink_to(tmp_path / "other")
    paths = ("real", "real/inner", "link", "link/out", "missing")
    places = [Mount(path=str(tmp_path / path)) for path in paths]

    world = bubblewrap.plan_mounts(PLAIN, places)

    assert {bind.path for bind in world.binds} == {str(tmp_path / "real"), str(tmp_path / "other")}
    assert world.links == [(str(tmp_path / "link"), "real")]


def test_something_else_in_the_place_of_a_place_is_refused(tmp_path: Path) -> None:
    place = Mount(path=str(tmp_path), is_writable=True, inode=(1, 2))

    with pytest.raises(OSError, match="Stale file handle"):
        bubblewrap.plan_mounts(PLAIN, [place])


def test_a_writable_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bubblewrap.plan_mounts(PLAIN, [Mount(path=str(tmp_path / "gone"), is_writable=True)])


def test_bwrap_is_never_looked_for(house: House) -> None:
    outcome = house.run(house.order("bwrap", "true", program="bwrap"))

    assert "has to be absolute" in outcome.failure


@needs_bwrap
def test_the_world_is_what_was_promised_and_cannot_grow(house: House) -> None:
    script = "ls -A / | paste -sd' '; ls /etc | grep -c pass; touch /x /dev/x /usr/x 2>&1 | grep -c Read-only"

    outcome = house.run(house.order("bwrap", "sh", "-c", script))

    top, passwords, refused = outcome.out.splitlines()
    assert set(top.split()) - {"sys", "opt"} == {
        *("bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "tmp", "usr", "var"),
    }
    assert int(passwords) >= 1
    assert refused == "3"


@pytest.mark.parametrize("place", ["/var", "/var/tmp", "/var/tmp/deep"])
def test_the_second_temporary_folder_is_one_of_its_own_where_a_place_is_near(place: str) -> None:
    given = told(PLAIN, MountPlan([Bind(place, True, 6)]))

    assert "--symlink" not in given
    assert mounted(given).count("/var/tmp") == 1


@needs_bwrap
def test_memory_folders_have_an_end(house: House) -> None:
    script = (
        "for at in /tmp /run /dev/shm; do head -c 5M /dev/zero > $at/x; stat -c %s $at/x; done; stat -c %s /var/tmp/x"
    )

    outcome = house.run(house.order("bwrap", "sh", "-c", script))

    assert outcome.out.split() == [str(4 * 1024 * 1024)] * 4


@needs_bwrap
def test_what_is_hidden_in_a_place_is_covered_and_a_place_in_it_is_seen(house: House) -> None:
    state = house.base / "state"
    (state / "inner").mkdir()
    (state / "inner/mine").write_text("seen")
    places = (
        *house.isolation_spec("bwrap").mounts,
        *(Mount(path=str(path)) for path in (house.base, state / "inner")),
    )
    hidden = (str(state), str(house.base / "outside/file"), str(house.base / "not there"))
    script = f"ls {state}; cat {state}/secret {house.base}/outside/file; cat {state}/inner/mine; touch {state}/new"

    outcome = house.run(house.order("bwrap", "sh", "-c", script, mounts=places, hidden=hidden))

    assert outcome.out == "inner\nseen"
    assert CANARY not in outcome.out + outcome.err
    assert "Read-only file system" in outcome.err


def make_repository(house: House) -> Path:
    folder = house.workspace / ".git"
    subprocess.run(["git", "init", "-q", house.workspace], check=True, env={"PATH": PATH, "HOME": "/nonexistent"})
    if IS_ROOT:
        subprocess.run(["chown", "-R", f"{house.user}:{house.user}", folder], check=True)
    return folder


def protect(house: House, script: str) -> str:
    protected = (f"{house.workspace}/.git/hooks/", f"{house.workspace}/.git/config")
    outcome = house.run(house.order("bwrap", "sh", "-c", f"({script}) 2>&1", protected=protected))
    assert outcome.failure == ""
    return outcome.out


@needs_bwrap
@needs_git
def test_what_git_would_run_cannot_be_changed_and_git_works(house: House) -> None:
    folder = make_repository(house)
    config = (folder / "config").read_text()
    script = (
        "echo x > .git/hooks/post-commit; git config core.fsmonitor ./evil; echo x >> .git/config; rm -rf .git/hooks;"
        "mv .git away; mv .git/hooks away; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one;"
        "git log --format=%s"
    )

    said = protect(house, script)

    assert said.splitlines()[-1] == "one"
    assert (folder / "config").read_text() == config
    assert not (folder / "hooks/post-commit").exists()
    assert (folder / "hooks").is_dir()


@needs_bwrap
@needs_git
def test_what_is_missing_of_it_cannot_be_made(house: House) -> None:
    folder = make_repository(house)
    shutil.rmtree(folder / "hooks")
    (folder / "config").unlink()

    protect(house, "mkdir -p .git/hooks; echo x > .git/hooks/post-commit; echo x > .git/config")

    assert list((folder / "hooks").iterdir()) == []
    assert (folder / "config").read_text() == ""


@needs_bwrap
@needs_git
def test_a_repository_can_be_made_where_there_is_none(house: House) -> None:
    protect(house, "git init -q . && git config user.name me")

    assert "name = me" in (house.workspace / ".git/config").read_text()


@needs_bwrap
def test_a_symlink_in_the_place_of_git_is_followed_inside_and_ignored_outside(house: House) -> None:
    inside, outside = house.workspace / "elsewhere", house.base / "outside"
    (inside / "hooks").mkdir(parents=True)
    for path in (inside, inside / "hooks"):
        os.chown(path, house.user, -1)
    (house.workspace / ".git").symlink_to("elsewhere")

    said = protect(house, "echo x > .git/hooks/x || echo refused")
    (house.workspace / ".git").unlink()
    (house.workspace / ".git").symlink_to(outside)

    assert said.endswith("refused\n")
    assert protect(house, "echo works") == "works\n"
    assert sorted(path.name for path in outside.iterdir()) == ["file"]


@needs_bwrap
@pytest.mark.skipif(shutil.which("gcc", path=PATH) is None, reason="no compiler is installed")
def test_a_library_named_in_the_environment_is_loaded_behind_the_walls_only(house: House) -> None:
    source, library, marks = house.workspace / "evil.c", house.workspace / "evil.so", house.base / "outside"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void go(void) {"
        f'open("{marks}/loaded", O_CREAT, 0644); open("{house.workspace}/loaded", O_CREAT, 0644); }}'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True, env={"PATH": PATH})

    outcome = house.run(house.order("bwrap", "true", env={"LD_PRELOAD": str(library)}))

    assert outcome.code == 0
    assert (house.workspace / "loaded").exists()
    assert not (marks / "loaded").exists()
