"""Where sessions work: which folders they may have, and whose turn counts in them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ToolUnavailable
from app.core.sessions import InvalidSession, Session
from app.sandbox.files import workspaces
from app.sandbox.files.workspace import LocalWorkspace
from app.sandbox.files.workspaces import Workspaces


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A home, two roots the operator allows, the data directory, and an outside."""
    for folder in ("home/inner", "root/a/b", "root/c", "second", "data/workspaces", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def places(world: Path) -> Iterator[Workspaces]:
    made = Workspaces(LocalWorkspace(world / "home"), world / "data", [world / "root", world / "second"])
    yield made
    made.close()


def session(root: Path | str | None, principal: str = "ada", id: str = "s") -> Session:
    return Session(principal, id, workspace=None if root is None else str(root))


def descriptors() -> set[str]:
    """The folders this process holds open."""
    return {path for fd in os.listdir("/proc/self/fd") if (path := _target(fd)).startswith("/")}


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_without_a_folder_of_its_own_a_session_works_at_home(places: Workspaces, world: Path) -> None:
    assert places.of(session(None)).root == str(world / "home") == places.home


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (".", None),
        ("{world}/home", None),
        ("{world}/home/", None),
        ("inner/..", None),
        ("inner", "home/inner"),
        ("{world}/home/inner", "home/inner"),
        ("{world}/root", "root"),
        ("{world}/root/a/b", "root/a/b"),
        ("../root/a", "root/a"),
        ("{world}/second/../root/a", "root/a"),
        ("{world}/outside/in", "root/a"),
        ("not there yet", "home/not there yet"),
    ],
)
def test_a_folder_in_the_home_or_an_allowed_root_can_be_had(
    places: Workspaces, world: Path, asked: str, found: str | None
) -> None:
    (world / "outside/in").symlink_to(world / "root/a")

    assert places.locate("ada", asked.format(world=world)) == (found and str(world / found))


@pytest.mark.parametrize(
    "asked",
    [
        "..",
        "{world}",
        "/",
        "/etc",
        "{world}/outside",
        "{world}/outside/not there",
        "{world}/home-not",
        "{world}/root/out",
        "{world}/root/out/deeper",
        "inner/../../outside",
        "{world}/data",
        "{world}/data/toolcrib.db",
        "{world}/data/workspaces",
        "{world}/data/workspaces/ada",
        "{world}/data/workspaces/bob/s",
        "{world}/data/workspaces/ada/../bob/s",
        "{world}/data/workspaces/ada/s/.git",
        "{world}/root/a/.git",
        "{world}/root/a/.GIT/hooks",
        "inner/.git/hooks",
        "link_to_git",
        "a\0b",
    ],
)
def test_any_other_folder_is_refused_whether_it_exists_or_not(places: Workspaces, world: Path, asked: str) -> None:
    (world / "root/out").symlink_to(world / "outside")
    (world / "home/link_to_git").symlink_to("inner/.git")
    (world / "data/workspaces/bob/s").mkdir(parents=True)

    with pytest.raises(InvalidSession, match=r"^workspace: "):
        places.locate("ada", asked.format(world=world))


def test_a_root_that_the_operator_put_into_git_is_one_all_the_same(world: Path) -> None:
    (world / "root/.git/tree/a").mkdir(parents=True)
    places = Workspaces(LocalWorkspace(world / "home"), world / "data", [world / "root/.git/tree"])

    assert places.locate("ada", str(world / "root/.git/tree/a")) == str(world / "root/.git/tree/a")
    places.close()


def test_a_folder_around_the_records_is_never_given_out(world: Path) -> None:
    places = Workspaces(LocalWorkspace(world), world / "data", [Path("/")])

    assert places.locate("ada", ".") is None
    assert places.locate("ada", "root") == str(world / "root")
    for asked in ("..", "/", str(world / "data"), "data/workspaces"):
        with pytest.raises(InvalidSession):
            places.locate("ada", asked)
    places.close()


def test_a_home_in_the_data_directory_is_one_all_the_same(world: Path) -> None:
    (world / "data/workspace/deep").mkdir(parents=True)
    places = Workspaces(LocalWorkspace(world / "data/workspace"), world / "data", [])

    assert places.locate("ada", "deep") == str(world / "data/workspace/deep")
    with pytest.raises(InvalidSession):
        places.locate("ada", "..")
    places.close()


def test_what_is_no_folder_is_said_when_it_is_entered(places: Workspaces, world: Path) -> None:
    (world / "root/file").write_text("")

    for name in ("file", "nothing"):
        with pytest.raises(InvalidSession, match=r"^workspace: .* does not exist, or is not a folder\.$"):
            places.enter(str(world / "root" / name))


def test_a_made_folder_is_fresh_each_time_and_its_owners_alone(places: Workspaces, world: Path) -> None:
    first = places.make("ada", "s")
    (Path(first) / "kept").write_text("still here")
    second = places.make("ada", "s")

    assert first == str(world / "data/workspaces/ada/s")
    assert second.startswith(first + "-")
    assert os.listdir(second) == []
    assert (Path(first) / "kept").read_text() == "still here"
    assert places.locate("ada", first) == first
    assert places.of(session(second)).root == second
    with pytest.raises(InvalidSession):
        places.locate("bob", first)


@pytest.mark.parametrize("id", ["a:b", "x" * 128, ":" * 128, "..", ".hidden", "a/b", "../../outside"])
def test_no_name_leads_out_of_the_folder_of_those_made_here(places: Workspaces, world: Path, id: str) -> None:
    made = Path(places.make("ada", id))

    assert made.parent == world / "data/workspaces/ada"
    assert made.is_dir()
    assert not made.name.startswith(".")
    assert made.resolve() == made


def test_different_names_have_different_folders(places: Workspaces) -> None:
    names = ["a:b", "a%3Ab", "a_b", "a.b", "x" * 129, "x" * 130]

    assert len({Path(places.make("ada", name)).name for name in names}) == len(names)
    assert not any("-" in Path(places.make("bob", name)).name for name in names[:4])


def test_a_folder_that_was_made_in_vain_goes_unless_something_is_in_it(places: Workspaces) -> None:
    empty, full = places.make("ada", "empty"), places.make("ada", "full")
    (Path(full) / "file").write_text("")
    places.enter(empty)

    places.discard(empty)
    places.discard(full)

    assert (os.path.exists(empty), os.path.exists(full)) == (False, True)


def test_unrelated_folders_have_lanes_of_their_own(places: Workspaces, world: Path) -> None:
    a, c, home = (places.of(session(root)).lane for root in (world / "root/a", world / "root/c", None))

    assert len({a, c, home}) == 3


def test_a_folder_in_the_home_shares_its_lane(places: Workspaces, world: Path) -> None:
    assert places.of(session(world / "home/inner")).lane == places.of(session(None)).lane


@pytest.mark.parametrize("outer_first", [True, False])
def test_nested_folders_share_the_lane_of_the_outermost(places: Workspaces, world: Path, outer_first: bool) -> None:
    roots = [world / "root", world / "root/a", world / "root/a/b"]
    for root in roots if outer_first else reversed(roots):
        places.enter(str(root))

    lanes = {places.of(session(root)).lane for root in roots}

    assert lanes == {LocalWorkspace(world / "root").lane}
    assert places.of(session(world / "root/c")).lane in lanes
    assert places.of(session(world / "second")).lane not in lanes


def test_a_folder_around_the_home_takes_its_lane_over(world: Path) -> None:
    places = Workspaces(LocalWorkspace(world / "root/a"), world / "data", [world / "root"])
    before = places.of(session(None))
    inner = places.of(session(world / "root/a/b"))

    places.enter(str(world / "root"))

    after = places.of(session(None))
    outer = places.of(session(world / "root")).lane
    assert before.lane == inner.lane != outer
    assert (after.lane, places.of(session(world / "root/a/b")).lane) == (outer, outer)
    assert (before.name("b"), after.name("b")) == ("b", "b")
    places.close()


def test_roots_of_earlier_sessions_count_without_being_open(places: Workspaces, world: Path) -> None:
    places.know([str(world / "root")])

    assert places.of(session(world / "root/a")).lane == LocalWorkspace(world / "root").lane


def test_a_folder_inside_a_made_one_shares_its_lane(places: Workspaces) -> None:
    made = places.make("ada", "s")
    inner = os.path.join(made, "inner")
    os.mkdir(inner)

    assert places.of(session(inner)).lane == places.of(session(made)).lane
    assert places.of(session(places.make("ada", "t"))).lane != places.of(session(made)).lane


def test_one_folder_by_two_paths_is_one_lane(places: Workspaces, world: Path) -> None:
    (world / "second/link").symlink_to(world / "root/a")
    located = places.locate("ada", str(world / "second/link"))

    assert places.of(session(located)) is places.of(session(world / "root/a"))


def test_a_session_whose_folder_is_gone_says_so(places: Workspaces, world: Path) -> None:
    mine = session(world / "root/c")
    places.of(mine)
    (world / "root/c").rmdir()

    with pytest.raises(ToolUnavailable, match=r"cannot be used: .*/root/c does not exist, or is not a folder\.$"):
        places.of(mine)

    (world / "root/c").mkdir()
    (world / "root/c/new").write_text("")
    assert [entry.name for entry in places.of(mine).scan(".")] == ["new"]


def test_a_link_put_in_the_place_of_a_folder_is_not_followed(places: Workspaces, world: Path) -> None:
    inner, deep = session(world / "home/inner"), session(world / "root/a/b")
    places.of(inner)
    (world / "home/inner").rmdir()
    (world / "home/inner").symlink_to(world / "outside")
    (world / "root/a").rename(world / "root/moved")
    (world / "root/a").symlink_to(world / "root/moved")

    for mine in (inner, deep):
        with pytest.raises(ToolUnavailable, match="was moved, or a part of its path was replaced by a link"):
            places.of(mine)


def test_what_the_operator_does_not_allow_any_more_is_not_opened(world: Path) -> None:
    places = Workspaces(LocalWorkspace(world / "home"), world / "data", [])

    with pytest.raises(ToolUnavailable, match="in no folder that the service allows any more"):
        places.of(session(world / "root/a"))
    places.close()


def test_only_so_many_folders_are_held_and_those_in_use_stay_usable(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspaces, "MAX_OPEN", 3)
    places = Workspaces(LocalWorkspace(world / "home"), world / "data", [world / "root"])
    roots = [world / "root" / f"r{number}" for number in range(6)]
    for root in roots:
        root.mkdir()
        (root / "file").write_text("")

    used = places.of(session(roots[0]))
    for root in roots:
        places.of(session(root))
    held = {path for path in descriptors() if path.startswith(str(world / "root"))}

    assert held == {str(root) for root in (roots[0], *roots[3:])}
    assert [entry.name for entry in used.scan(".")] == ["file"]
    del used
    assert str(roots[0]) not in descriptors()
    places.close()
    assert not any(path.startswith(str(world)) for path in descriptors())
