import errno
from collections.abc import Iterator

import pytest

from app.core.errors import FileFailed
from app.core.ports import Entry
from app.text.similar_paths import similar_paths

TREE: dict[str, dict[str, str]] = {
    ".": {"src": "directory", "docs": "directory", "README.md": "file", "link": "symlink", "src.zip": "file"},
    "src": {"main.py": "file", "Main.py": "file", "main_window.py": "file", "mainly": "directory", "x.py": "file"},
    "docs": {"readme": "file", "guide.md": "file", "a\nb.md": "file"},
    "/ws": {"src": "directory"},
    "/ws/src": {"main.py": "file"},
}


def scan(path: str) -> Iterator[Entry]:
    if path not in TREE:
        raise FileFailed(errno.ENOENT, path)
    return (Entry(name, kind) for name, kind in TREE[path].items())  # type: ignore[arg-type]


def test_what_may_have_been_meant(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("readme.md", ["README.md"]),
        ("src/MAIN.PY", ["src/main.py", "src/Main.py", "src/mainly"]),
        ("src/maim.py", ["src/main.py", "src/Main.py", "src/mainly"]),
        ("src/window", ["src/main_window.py"]),
        ("docs/the_new_readme_file", ["docs/readme"]),
        ("docs/ab.md", []),
        ("src/xx", []),
        ("scr/main.py", ["src/main.py"]),
        ("scr/none.py", ["src"]),
        ("scr/deep/none.py", ["src"]),
        ("lnik/none.py", ["link"]),
        ("nothing/like/it", []),
        ("/ws/scr/main.py", ["/ws/src/main.py"]),
        ("/elsewhere/x", []),
        ("", []),
        ("/", []),
    ]
    for path, expected in cases:
        with subtests.test(path=path, expected=expected):
            assert similar_paths(path, scan) == expected


def test_three_are_enough() -> None:
    entries = [Entry(f"file{number}.txt", "file") for number in range(50)]

    assert len(similar_paths("file.txt", lambda path: entries)) == 3


def test_a_name_of_other_case_is_found_among_very_many() -> None:
    entries = [Entry(f"{number:05}", "file") for number in range(5000)]

    assert similar_paths("wanted.TXT", lambda path: [*entries, Entry("Wanted.txt", "file")]) == ["Wanted.txt"]
