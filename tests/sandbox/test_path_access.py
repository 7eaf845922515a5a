"""Passages: another user comes to its places, and to nothing else, below folders that are closed to it."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.sandbox import syscalls
from app.sandbox.isolation import apply
from app.sandbox.isolation.bubblewrap import follow_links, is_below
from app.sandbox.process.spawner import Mount
from tests.sandbox.isolation_cases import CHILD, IS_ROOT, TIERS, House, opened

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root has folders closed to those it starts")
every_way = pytest.mark.parametrize("tier", TIERS)


@pytest.fixture
def house() -> Iterator[House]:
    with opened("identity") as house:
        yield house


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def folder(path: Path, mode: int, owner: tuple[int, int] | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner and IS_ROOT:
        os.chown(path, *owner)
    return path


@pytest.mark.parametrize(
    ("mode", "is_closed"),
    [(0o700, True), (0o711, False), (0o755, False), (0o750, True), (0o644, True), (0o701, False)],
    ids=oct,
)
def test_a_folder_is_closed_to_who_may_not_go_through(base: Path, mode: int, is_closed: bool) -> None:
    above = folder(base / "above", mode)

    assert apply.closed_folders([str(above / "place/deep")], CHILD, CHILD) == ([str(above)] if is_closed else [])
    assert apply.closed_folders([str(above)], CHILD, CHILD) == []


@needs_root
def test_owner_and_group_are_asked_before_all_others(base: Path) -> None:
    mine = folder(base / "mine", 0o077, (CHILD, 0))
    group = folder(base / "group", 0o707, (0, CHILD))
    ours = folder(base / "ours", 0o710, (0, CHILD))

    found = apply.closed_folders([str(path / "x") for path in (mine, group, ours)], CHILD, CHILD)

    assert found == sorted(map(str, (mine, group)))


def test_symlinks_lead_through_closed_folders_too(base: Path) -> None:
    closed, open_one = folder(base / "closed", 0o700), folder(base / "open", 0o755)
    (open_one / "in").symlink_to(closed / "deep")
    (closed / "out").symlink_to(open_one)

    assert apply.closed_folders([str(open_one / "in")], CHILD, CHILD) == [str(closed)]
    assert apply.closed_folders([str(closed / "out")], CHILD, CHILD) == [str(closed)]


def test_a_way_tells_its_symlinks(base: Path) -> None:
    (base / "a").symlink_to("b/../c")
    (base / "b").mkdir()
    (base / "c").symlink_to(base / "d")
    (base / "loop").symlink_to("loop")

    assert follow_links(str(base / "a/x")) == (
        str(base / "d/x"),
        [(str(base / "a"), "b/../c"), (str(base / "c"), str(base / "d"))],
    )
    with pytest.raises(OSError, match="levels of symbolic links"):
        follow_links(str(base / "loop"))


def test_nothing_is_below_itself_or_a_namesake() -> None:
    assert [is_below(path, "/a/b") for path in ("/a/b/c", "/a/b", "/a/bc", "/a", "/")] == [True] + [False] * 4
    assert is_below("/a", "/")


@needs_root
@every_way
def test_a_place_below_closed_folders_is_reached_by_its_own_path(house: House, tier: str) -> None:
    closed = folder(house.base / "closed", 0o700)
    shown = folder(closed / "shown", 0o755)
    inner = folder(shown / "inner", 0o700)
    mine = folder(inner / "mine", 0o755, (CHILD, CHILD))
    (shown / "file").write_text("shown")
    (closed / "secret").write_text("secret")
    (inner / "secret").write_text("secret")
    (closed / "link").symlink_to(mine)
    (closed / "single").write_text("single")
    places = (
        *house.isolation_spec(tier).mounts,
        *(Mount(path=str(path)) for path in (shown, closed / "single", closed / "link", closed / "not there")),
        Mount(path=str(mine), is_writable=True),
    )
    script = (
        f"pwd -P; echo x > {mine}/made; cat {closed}/link/made {shown}/file {closed}/single; "
        f"cat {closed}/secret {inner}/secret; ls -R {closed}; touch {closed}/x {inner}/x {shown}/x"
    )
    order = house.order(tier, "sh", "-c", script, mounts=places)

    outcome = house.run(replace(order, cwd=str(closed / "link")))

    said = outcome.out.split("\n", 3)
    assert outcome.failure == ""
    assert said[0] == str(mine)
    assert said[1] == "x"
    assert said[2].startswith("shownsingle")
    assert "secret" not in outcome.out
    assert (mine / "made").read_text() == "x\n"
    assert sorted(path.name for path in closed.iterdir()) == ["link", "secret", "shown", "single"]


@needs_root
@every_way
def test_the_rest_of_the_machine_does_not_see_it(house: House, tier: str) -> None:
    closed = folder(house.base / "closed", 0o700)
    mine = folder(closed / "mine", 0o755, (CHILD, CHILD))
    before = Path("/proc/self/mountinfo").read_text()
    places = (*house.isolation_spec(tier).mounts, Mount(path=str(mine), is_writable=True))

    outcome = house.run(house.order(tier, "cat", "/proc/self/mountinfo", mounts=places))

    assert str(mine) in outcome.out
    assert Path("/proc/self/mountinfo").read_text() == before


@needs_root
def test_without_the_right_to_mount_it_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder(house.base / "closed", 0o700)
    place = Mount(path=str(folder(closed / "mine", 0o755)))
    monkeypatch.setattr(syscalls, "has_capabilities", lambda *_: False)

    with pytest.raises(PermissionError, match="cannot enter it") as refused:
        apply.grant_path_access([place], CHILD, CHILD)

    assert refused.value.filename == str(closed)
    apply.grant_path_access([Mount(path=str(house.workspace))], CHILD, CHILD)
