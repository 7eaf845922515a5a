import os
import subprocess
from pathlib import Path

import pytest

from app.core.errors import InvalidArgs, OutsideWorkspace
from app.sandbox import ripgrep
from app.text.glob import compile_glob

FILES = (
    *("a", "b", "ab", "a.py", "b.py", "a.pyc", "aab.txt", "x*y", "x[y", "é.txt", "a b", "-"),
    *("d/a", "d/b.py", "d/e/a.py", "d/e/f/b.py", "d/e/f/g/a", "e/d/a.py", "a.b/c.py", "ad/e/a.py"),
)
PATTERNS = (
    *("a", "*", "?", "**", "*.py", "a*", "*a*", "*a*b*", "a?", "[ab]", "[!a]", "[^a]", "[a-b].py", "*.p[a-z]"),
    *("{a,b}", "{a,b}.py", "*.{py,txt}", "{a,{b,ab}}", "{d,e}/*", "d/{a,e/*}", "x\\*y", "x\\[y", "x[[]y", "é*"),
    *("/a", "/a.py", "d/a", "d/*", "d/**", "d/**/a", "d/**/*.py", "**/d/*", "**/e/**", "**/a", "a/**", "*/a.py"),
    *("*/*/*", "d/**/**/a", "**/**", "d/e/**/a", "**/f/**/a", "a b", "-", "*d/*/a.py", "**/*d/e/*", "[d]/[!b]"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_glob_means_what_it_means_to_ripgrep(pattern: str, tree: Path) -> None:
    glob = compile_glob(pattern)

    ours = {name for name in listed(tree, *glob.arguments()) if glob.matches(name)}

    assert ours == listed(tree, f"--glob={pattern}")
    assert ours == {name for name in FILES if glob.matches(name)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    return tree


def listed(tree: Path, *arguments: str) -> set[str]:
    command = [ripgrep.programs()[0], "--no-config", "--files", *arguments]
    done = subprocess.run(command, cwd=tree, capture_output=True, check=False)
    assert done.stderr == b""
    return {os.fsdecode(name) for name in done.stdout.splitlines()}


def test_a_wildcard_never_stands_for_the_dot_that_hides_a_name(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str], list[str]]] = [
        ("*", ["a", "d/a"], [".a", ".d/a", "d/.a"]),
        ("?a", ["xa"], [".a"]),
        ("[.]a", [], [".a"]),
        ("**/a", ["a", "d/a"], [".d/a", "d/.e/a"]),
        ("d/**", ["d/a"], ["d/.a", "d/.e/a"]),
        (".a", [".a", "d/.a"], ["a", ".d/.a"]),
        ("\\.a", [".a"], ["a"]),
        (".d/*", [".d/a"], [".d/.a", "x/.d/a"]),
        ("**/.d/**", [".d/a", "x/.d/y/a"], [".x/.d/a", ".d/.y/a"]),
        (".*/.*", [".d/.a"], [".d/a"]),
    ]
    for pattern, names, others in cases:
        with subtests.test(pattern=pattern, names=names, others=others):
            glob = compile_glob(pattern)

            assert [name for name in [*names, *others] if glob.matches(name)] == names
            assert ("--hidden" in glob.arguments()) is any("/." in f"/{name}" for name in names)


def test_all_that_is_in_a_folder_can_be_meant_by_a_slash_at_the_end() -> None:
    glob = compile_glob("d/")

    assert [name for name in FILES if glob.matches(name)] == [name for name in FILES if name.startswith("d/")]


def test_with_an_exclamation_mark_all_others_are_meant(tree: Path) -> None:
    glob = compile_glob("!*.py")

    assert listed(tree, *glob.arguments()) == {name for name in FILES if not name.endswith(".py")}


def test_only_who_names_the_folder_of_git_looks_into_it() -> None:
    assert "--glob=!.git" in compile_glob(".*/config").arguments()
    assert "--glob=!.git" not in compile_glob(".git/config").arguments()


def test_what_is_no_glob_is_said(subtests: pytest.Subtests) -> None:
    for pattern in ["", "/", "{a", "a}", "[a", "a[", "[b-a]", "{a,b}" * 7, "x" * 1001, "{" * 500]:
        with subtests.test(pattern=pattern):
            for given in (pattern, f"!{pattern}"):
                with pytest.raises(InvalidArgs):
                    compile_glob(given)


@pytest.mark.parametrize("pattern", ["..", "../a", "a/..", "{a,..}/b", "!../a"])
def test_a_glob_does_not_lead_upwards(pattern: str) -> None:
    with pytest.raises(OutsideWorkspace):
        compile_glob(pattern)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("*a" * 400 + "b", "a" * 250), ("**/a/" * 190 + "b", "a/" * 2000 + "c"), ("**/*" * 200, "/".join("a" * 2000))],
)
def test_no_pattern_takes_ages(pattern: str, name: str) -> None:
    """With naive expressions each of these would not come back."""
    compile_glob(pattern).matches(name)
