import os
import subprocess
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.core.errors import BinaryFile
from app.core.ports import Change, Snapshot, Stamp
from app.text.edit.diff import Span, compare, lines_of
from app.text.edit.draft import MAX_DIFF_LENGTH, Draft, changes_of, diff_facts
from app.text.file_text import Content, decode
from tests.support.scale import rounds

STAMP = Stamp(1, 2, 3, 4)
LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", " c\n", "d\r\n", "\re\r\n", "-f\n", "+g\n", "\\ h\n"]), max_size=10
)
TEXTS = st.builds(lambda lines, last: "".join(lines) + last, LINES, st.sampled_from(["", "", "z", "z\r", "\r"]))
NAMES = [
    "a.txt",
    "a folder/b c.txt",
    "tab\there.txt",
    'quo"te.txt',
    "back\\slash.txt",
    "é ü.txt",
    " x ",
    "two\nlines",
]


def snapshot(data: bytes, mode: int = 0o644) -> Snapshot:
    return Snapshot(data, STAMP, mode)


def draft(path: str, old: bytes | None, new: bytes | None, moved_from: str | None = None) -> Draft:
    return Draft(
        path=path,
        before=None if old is None else snapshot(old),
        old=None if old is None else decode(old, path),
        new=None if new is None else decode(new, path),
        moved_from=moved_from,
    )


def git_applied(diff: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """What the real `git apply` makes of these files by this diff."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        alone = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(root.parent), "HOME": folder}
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=diff.encode(),
            cwd=root,
            env=os.environ | alone,
            check=True,
            capture_output=True,
            timeout=30,
        )
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.sampled
@given(TEXTS, TEXTS, st.booleans(), st.sampled_from(NAMES))
@settings(max_examples=rounds(60, 2_000))
def test_git_applies_the_diff(old: str, new: str, has_mark: bool, name: str) -> None:
    mark = b"\xef\xbb\xbf" if has_mark else b""
    before, after = mark + old.encode(), mark + new.encode()
    assume(before != after)

    diff = draft(name, before, after).diff()

    assert git_applied(diff.text, {name: before}) == {name: after}


def test_git_makes_takes_away_and_moves_files_by_the_diff(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        for data in [b"", b"a\nb", b"\xef\xbb\xbfa\r\n"]:
            with subtests.test(name=name, data=data):
                made = draft(name, None, data).diff().text
                taken = draft(name, data, None).diff().text
                moved = draft(name, data, data, moved_from="old/place.txt").diff().text
                moved_and_changed = draft(name, data, data + b"more\n", moved_from="old/place.txt").diff().text

                assert git_applied(made, {}) == {name: data}
                assert git_applied(taken, {name: data}) == {}
                assert git_applied(moved, {"old/place.txt": data}) == {name: data}
                assert git_applied(moved_and_changed, {"old/place.txt": data}) == {name: data + b"more\n"}


def test_a_diff_of_several_files_is_one_that_git_applies() -> None:
    drafts = [
        draft("a", b"1\n2\n", b"1\n3\n"),
        draft("new/b", None, b"x"),
        draft("c", b"", None),
        draft("d", b"", b"y\n"),
    ]

    told = diff_facts(drafts)

    assert git_applied(told["diff"], {"a": b"1\n2\n", "c": b"", "d": b""}) == {
        "a": b"1\n3\n",
        "new/b": b"x",
        "d": b"y\n",
    }


@given(TEXTS, TEXTS)
def test_known_spans_give_the_diff_that_is_found_without_them(old: str, new: str) -> None:
    found = draft("x", old.encode(), new.encode())
    known = replace(found, spans=compare(lines_of(old), lines_of(new)))

    assert known.diff() == found.diff()


def test_the_facts_tell_the_diff_and_the_counts_of_each_file() -> None:
    drafts = [draft("a", b"1\n", b"2\n3\n"), draft("b", None, b"x\n"), draft("n", b"y\n", b"y\n", moved_from="o")]

    assert diff_facts(drafts) == {
        "diff": (
            "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1,2 @@\n-1\n+2\n+3\n"
            "diff --git a/b b/b\nnew file mode 100644\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+x\n"
            "diff --git a/o b/n\nrename from o\nrename to n\n"
        ),
        "additions": 3,
        "deletions": 1,
        "files": [
            {"path": "a", "kind": "modified", "additions": 2, "deletions": 1},
            {"path": "b", "kind": "added", "additions": 1, "deletions": 0},
            {"path": "n", "kind": "moved", "additions": 0, "deletions": 0, "moved_from": "o"},
        ],
    }


def test_where_hunks_tell_all_there_is_nothing_but_hunks() -> None:
    assert diff_facts([draft("a", b"1\n", b"2\n"), draft("b", None, b"x\n")])["diff"] == (
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+x\n"
    )


def test_a_file_in_another_root_is_named_as_diffs_name_files() -> None:
    assert draft("/mnt/x.txt", b"1\n", b"2\n").diff().text.startswith("--- a/mnt/x.txt\n+++ b/mnt/x.txt\n")


def test_a_long_diff_is_cut_and_never_made_whole() -> None:
    old, new = ["old line\n"] * 400_000, ["new line\n"] * 400_000
    long = replace(draft("a", "".join(old).encode(), "".join(new).encode()), spans=[Span(0, old, new)])
    short = draft("b", b"1\n", b"2\n")

    tracemalloc.start()
    try:
        told = diff_facts([long, short])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert MAX_DIFF_LENGTH - 100 < len(told["diff"]) <= MAX_DIFF_LENGTH
    assert (told["diff_cut"], told["additions"], told["deletions"]) == (True, 400_001, 400_001)
    assert peak < 12 * 2**20


def test_what_cannot_be_read_as_text_has_no_diff_but_can_move_and_go() -> None:
    image = b"\x89PNG\0"
    moved = Draft(path="new.png", before=snapshot(image), old=None, new=None, moved_from="old.png")
    gone = Draft(path="a.png", before=snapshot(image), old=None, new=None)

    assert git_applied(replace(moved, new=Content("x")).diff().text, {"old.png": image}) == {"new.png": image}
    assert (gone.diff().text, gone.kind) == ("", "deleted")


def test_a_draft_knows_its_changes() -> None:
    old = snapshot(b"1\n", 0o755)
    edited = Draft(path="a", before=old, old=Content("1\n"), new=Content("2\n"))
    moved = replace(edited, path="b", moved_from="a")
    onto = replace(moved, replaced=Snapshot(b"", replace(STAMP, inode=9), 0o600))

    assert edited.changes == [Change(path="a", data=b"2\n", before=STAMP)]
    assert replace(edited, new=Content("1\n")).changes == []
    assert replace(edited, new=None).changes == [Change(path="a", data=None, before=STAMP)]
    assert changes_of([draft("n", None, b"x")]) == [Change(path="n", data=b"x", before=None)]
    assert moved.changes == [
        Change(path="b", data=b"2\n", before=None, mode=0o755),
        Change(path="a", data=None, before=STAMP),
    ]
    assert onto.changes[0].before == replace(STAMP, inode=9)


def test_only_text_can_be_drafted() -> None:
    assert decode(b"\xef\xbb\xbfx", "a") == Content("x", has_bom=True)
    with pytest.raises(BinaryFile):
        decode(b"\0", "a")
