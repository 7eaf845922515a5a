"""What models send: each wrapping comes to the same patch, and what is refused says what was received."""

import json
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import InvalidArgs
from app.text.patch.lenient import read
from app.text.patch.parse import Add, Delete, Hunk, Operation, Update, parse

PATCH = """\
*** Begin Patch
*** Update File: src/a.py
@@ def f():
 x = 1
-y = 2
+y = 3
*** Add File: b.md
+```python
+```
*** End Patch"""


def updated(body: str) -> Operation:
    """The one operation of a patch that updates `f`."""
    [operation] = read(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch\n")
    return operation


def refused(text: str) -> str:
    with pytest.raises(InvalidArgs) as caught:
        read(text)
    return caught.value.message


WRAPPED = {
    "plain": PATCH,
    "blank space": f"\n  \n{PATCH}\n\n \n",
    "byte order mark": f"\ufeff{PATCH}",
    "CRLF": PATCH.replace("\n", "\r\n"),
    "stars after the markers": PATCH.replace("Begin Patch", "Begin Patch ***").replace("End Patch", "End Patch ***"),
    "indented markers": PATCH.replace("*** Begin", "  *** Begin").replace("*** End", "\t*** End"),
    "blank space after markers": PATCH.replace("Patch", "Patch  ").replace("a.py", "a.py \t"),
    "last line twice": f"{PATCH}\n*** End Patch\n",
    "environment": PATCH.replace("Begin Patch", "Begin Patch\n*** Environment ID: local"),
    "quoted path": PATCH.replace("src/a.py", '"src/a.py"'),
    "path in single quotes": PATCH.replace("src/a.py", "'src/a.py'"),
    "path in backticks": PATCH.replace("src/a.py", "`src/a.py`").replace("b.md", "`b.md`"),
    "path with a dot": PATCH.replace("src/a.py", "./src/a.py").replace("b.md", ".//b.md"),
    "fence": f"```\n{PATCH}\n```",
    "fence with a language": f"```diff\n{PATCH}\n```\n",
    "fence of tildes": f"~~~~ patch\n{PATCH}\n~~~~",
    "fence with words": f"Here is the patch:\n\n```patch\n{PATCH}\n```\n\nIt changes `a.py`.\n```\nother\n```",
    "fence never closed": f"```\n{PATCH}\n",
    "fence never opened": f"{PATCH}\n```",
    "heredoc": f"<<EOF\n{PATCH}\nEOF\n",
    "quoted heredoc": f"<<'EOF'\n{PATCH}\nEOF",
    "heredoc with another word": f'<<"PATCH_END"\n{PATCH}\nPATCH_END',
    "heredoc without its end": f"<<'EOF'\n{PATCH}\n",
    "command": f"apply_patch <<'PATCH'\n{PATCH}\nPATCH",
    "command with a tab heredoc": f"applypatch <<-EOF\n{PATCH}\nEOF",
    "notebook": f'%%bash\napply_patch <<"EOF"\n{PATCH}\nEOF',
    "bare command": f"apply_patch\n{PATCH}",
    "fenced command": f"Run:\n```bash\napply_patch <<'EOF'\n{PATCH}\nEOF\n```\n",
    "JSON input": json.dumps({"input": PATCH}),
    "JSON patch": json.dumps({"patch": PATCH}),
    "JSON patchText": json.dumps({"patchText": PATCH, "note": 1}),
    "JSON string": json.dumps(PATCH),
    "JSON command": json.dumps({"command": ["apply_patch", PATCH]}),
    "JSON list": json.dumps(["apply_patch", PATCH]),
    "JSON shell": json.dumps({"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"]}),
    "JSON with line ends as they are": '{"input": "' + PATCH + '"}',
    "JSON in JSON": json.dumps({"input": json.dumps({"input": PATCH})}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_however_it_is_wrapped_it_is_the_same_patch(name: str) -> None:
    def unnumbered(operations: list[Operation]) -> list[object]:
        return [
            (type(operation), operation.path, [(hunk.headers, hunk.lines) for hunk in operation.hunks])
            if isinstance(operation, Update)
            else (type(operation), operation.path, getattr(operation, "lines", None))
            for operation in operations
        ]

    assert unnumbered(read(WRAPPED[name])) == unnumbered(parse(PATCH))


@given(st.text(st.sampled_from("+- @*\nab`'\"{}<E\\"), max_size=60), st.sampled_from(sorted(WRAPPED)))
def test_text_of_any_kind_is_read_or_refused(junk: str, name: str) -> None:
    for text in (junk, WRAPPED[name][: len(junk)] + junk, junk + WRAPPED[name]):
        with suppress(InvalidArgs):
            assert read(text)


def test_what_is_no_patch_is_told_as_what_it_is(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("", "must begin with the line `*** Begin Patch`"),
        ("hello", "at line 1, `hello`: the patch must begin"),
        (f"Sure:\n{PATCH}", "Send nothing before it"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "looks like a unified diff"),
        (PATCH.replace("\n", "\\n"), "Line ends came as the two characters"),
        ("*** Begin Patch\n*** Add File: a\n+1\n", "it may have been cut off"),
        ("*** Begin Patch", "it may have been cut off"),
        ("*** Begin Patch\n*** End Patch", "changes no file"),
        (f"{PATCH}\n{PATCH}", "nothing may follow"),
        (f"cd src && apply_patch <<'EOF'\n{PATCH}\nEOF", "changes to `src` first"),
        (f"cd src; apply_patch <<'EOF'\n{PATCH}\nEOF", "changes to `src` first"),
        ('{"input": "*** Begin', "begins like JSON"),
        ("[" * 100_000, "begins like JSON"),
        ('{"text": "x", "y": 2}', "an object with `text`, `y`"),
        ("{}", "an object with no keys"),
        ("[1, 2]", "`[1, 2]`"),
    ]
    for text, what in cases:
        with subtests.test(text=text, what=what):
            assert what in refused(text)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("@@ -1,2 +1,2 @@", "line numbers are not used here"),
        ("@@ -1 +1 @@ def f():", "line numbers are not used here"),
        ("@@-1,2 +1,2 @@", "line numbers are not used here"),
        ("@@def f():", "there must be a space"),
        ("junk", "each line of a hunk begins"),
        ("\tindented by a tab", "each line of a hunk begins"),
    ],
)
def test_a_line_that_could_mean_two_things_is_refused(line: str, what: str) -> None:
    message = refused(f"*** Begin Patch\n*** Update File: f\n{line}\n-a\n*** End Patch")

    assert "at line 3" in message
    assert what in message


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("", "the update has no hunk"),
        ("*** Move to: g\n", "the update has no hunk"),
        ("@@\n", "the hunk has no lines"),
        ("-a\n@@ x\n", "the hunk has no lines"),
        ("@@\n*** End of File\n", "the hunk before it has no lines"),
    ],
)
def test_an_update_that_says_nothing_is_refused(body: str, what: str) -> None:
    assert what in refused(f"*** Begin Patch\n*** Update File: f\n{body}*** End Patch")


@pytest.mark.parametrize("id", ["", "  ", " a\n*** Environment ID: b"])
def test_an_environment_is_named_once(id: str) -> None:
    assert "named once" in refused(f"*** Begin Patch\n*** Environment ID:{id}\n*** Delete File: a\n*** End Patch")


def test_a_file_may_be_added_without_lines() -> None:
    text = "*** Begin Patch\n*** Add File: a\n*** Add File: b\n+1\n*** Add File: c\n*** End Patch\n"

    assert read(text) == [Add(2, "a", ()), Add(3, "b", ("1",)), Add(5, "c", ())]


def test_an_empty_line_of_a_hunk_is_a_line_that_stays() -> None:
    assert updated("@@\n a\n\n-b") == Update(2, "f", None, (Hunk(3, (), (" a", " ", "-b")),))


def test_within_an_update_an_indented_marker_is_a_line_that_stays() -> None:
    assert updated("-a\n *** Delete File: b\n *** End Patch") == Update(
        2, "f", None, (Hunk(3, (), ("-a", " *** Delete File: b", " *** End Patch")),)
    )


def test_headers_stack_up_and_blank_ones_tell_nothing() -> None:
    assert updated("@@ class A  \n@@ \n@@   def f\n-a") == Update(
        2, "f", None, (Hunk(3, ("class A", "  def f"), ("-a",)),)
    )


def test_a_header_may_name_a_line_of_a_diff() -> None:
    assert updated("@@ @@ -1,2 +1,2 @@\n-a") == Update(2, "f", None, (Hunk(3, ("@@ -1,2 +1,2 @@",), ("-a",)),))


@pytest.mark.parametrize("after", ["", "\n", "\n  \n"])
def test_blank_lines_after_the_end_of_the_file_tell_nothing(after: str) -> None:
    assert updated(f"-a\n*** End of File{after}") == Update(2, "f", None, (Hunk(3, (), ("-a",), is_at_end=True),))


@pytest.mark.parametrize("between", ["", "\n", " \n\n"])
def test_after_the_end_of_the_file_other_hunks_may_follow(between: str) -> None:
    update = updated(f"@@ a\n@@\n+z\n*** End of File\n{between}@@ a\n-b\n@@\n+y\n*** End of File")

    assert isinstance(update, Update)
    assert [(hunk.headers, hunk.lines, hunk.is_at_end) for hunk in update.hunks] == [
        (("a",), ("+z",), True),
        (("a",), ("-b",), False),
        ((), ("+y",), True),
    ]


def test_the_end_of_the_file_before_any_hunk_tells_nothing() -> None:
    assert updated("*** Move to: g\n*** End of File\n-a") == Update(2, "f", "g", (Hunk(5, (), ("-a",)),))


@pytest.mark.parametrize("after", ["-b", " b", "+b", "x", "@@", "@@x", "@@\n*** End of File", "*** End of File"])
def test_after_the_end_of_the_file_a_hunk_begins_with_a_header(after: str) -> None:
    refused(f"*** Begin Patch\n*** Update File: f\n-a\n*** End of File\n{after}\n*** End Patch")


@pytest.mark.parametrize(
    ("given", "path"),
    [("'a", "'a"), ("a'", "a'"), ("''", "''"), ("'a'b'", "'a'b'"), ("./'a'", "'a'"), ("./..", "./.."), ("./.a", ".a")],
)
def test_only_what_surrounds_a_path_is_taken_off(given: str, path: str) -> None:
    assert read(f"*** Begin Patch\n*** Delete File: {given}\n*** End Patch") == [Delete(2, path)]


def test_reading_takes_work_that_grows_with_the_text_only() -> None:
    """Each of these would take hours if it were looked at again and again."""
    for head, piece in product(
        ["", "x\n"], ["~", "`", "```\n", "~~~\n\n", " ", "<<E\n", "\\", "{", "*** Begin Patch\n"]
    ):
        with pytest.raises(InvalidArgs):
            read(head + piece * (400_000 // len(piece)))
