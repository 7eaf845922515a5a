"""The strict parser: what a patch says, and that it accepts exactly what the grammar describes.

Lark's Earley parser with the dynamic lexer is the judge: it matches terminals where the rules expect them, as the
grammar means it; lexers that cut the text beforehand take every line for a file name. It loads no terminal that can be
empty, so `/(.*)/` is written `/(.+)/?` for it, which is the same language.
"""

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lark import Lark, Token
from lark.exceptions import LarkError

from app.core.errors import InvalidArgs
from app.text.patch.parse import GRAMMAR, Add, Delete, Hunk, Update, parse, paths_of
from tests.support.scale import rounds

SCENARIOS = Path(__file__).parent.parent / "scenarios"
JUDGE = Lark(GRAMMAR.replace("/(.*)/", "/(.+)/?"), parser="earley", lexer="dynamic", ambiguity="resolve")

WHOLE = """\
*** Begin Patch
*** Add File: new.txt
+one
+
*** Update File: a b.py
*** Move to: c.py
@@ class A
@@     def f(self):
 stays
-goes
+comes
@@
-more
*** End of File
*** Delete File: gone.txt
*** Update File: d
*** End Patch
"""


def test_a_patch_is_read_as_its_operations() -> None:
    assert parse(WHOLE) == [
        Add(2, "new.txt", ("one", "")),
        Update(
            5,
            "a b.py",
            "c.py",
            (
                Hunk(7, ("class A", "    def f(self):"), (" stays", "-goes", "+comes")),
                Hunk(12, (), ("-more",), is_at_end=True),
            ),
        ),
        Delete(15, "gone.txt"),
        Update(16, "d"),
    ]


def test_the_paths_of_a_patch_are_those_it_touches() -> None:
    assert paths_of(parse(WHOLE)) == ["new.txt", "a b.py", "c.py", "gone.txt", "d"]


def test_the_last_line_end_may_be_missing() -> None:
    assert parse(WHOLE.rstrip("\n")) == parse(WHOLE)


def test_what_does_not_fit_is_told_with_its_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int, str]] = [
        ("", 2, "changes no file"),
        ("junk\n", 2, "there must be `*** Add File: path`"),
        ("*** Add File: \n+1\n", 2, "after the colon there must be a space and a path"),
        ("*** Add File: a\n", 2, "each beginning with `+`"),
        ("*** Add File: a\n+1\n\n", 4, "each line of an added file begins with `+`"),
        ("*** Delete File: a\n+1\n", 3, "there must be"),
        ("*** Update File: a\n@@ \n", 3, "each line of a hunk begins"),
        ("*** Update File: a\n@@x\n", 3, "each line of a hunk begins"),
        ("*** Update File: a\n*** End of File\n", 3, "each line of a hunk begins"),
        ("*** Update File: a\n-1\n*** Move to: b\n", 4, "directly follows its update"),
        ("*** Update File: a\n-1\n*** End of File\n-2\n", 5, "after `*** End of File` there can only be"),
        ("*** Delete File: a\n*** End Patch\n", 4, "nothing may follow `*** End Patch`"),
    ]
    for body, line, what in cases:
        with subtests.test(body=body, line=line, what=what):
            text = f"*** Begin Patch\n{body}*** End Patch\n"

            with pytest.raises(InvalidArgs) as caught:
                parse(text)

            assert what in caught.value.message
            assert caught.value.details == {"line": line, "text": text.split("\n")[line - 1]}


@pytest.mark.parametrize("text", ["", "\n", "*** End Patch", " *** Begin Patch\n*** Delete File: a\n*** End Patch"])
def test_a_patch_begins_with_its_first_line(text: str) -> None:
    with pytest.raises(InvalidArgs, match="the first line must be"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["*** Begin Patch", "*** Begin Patch\n*** Add File: a\n+1", "*** Begin Patch\n*** Upd"]
)
def test_a_patch_that_was_cut_off_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgs):
        parse(text)


def test_a_long_line_is_shown_in_part() -> None:
    with pytest.raises(InvalidArgs) as caught:
        parse(f"*** Begin Patch\n{'x' * 100_000}\n*** End Patch")

    assert len(caught.value.message) < 500


def judged(text: str) -> list[str] | None:
    """The paths in a patch by the judge; None when it is none."""
    try:
        tree = JUDGE.parse(text)
    except LarkError:
        return None
    names = [cast("Token", name.children[0]) for name in tree.find_data("filename")]
    return [str(name) for name in sorted(names, key=lambda name: name.start_pos or 0)]


def read(text: str) -> list[str] | None:
    try:
        return paths_of(parse(text))
    except InvalidArgs:
        return None


LINES = [
    "*** Begin Patch",
    "*** End Patch",
    "*** Add File: a",
    "*** Add File: ",
    "*** Delete File: b",
    "*** Delete File:",
    "*** Update File: c",
    "*** Update File:  ",
    "*** Move to: d",
    "*** Move to: ",
    "*** End of File",
    "@@",
    "@@ ",
    "@@  ",
    "@@ ctx",
    "@@x",
    "+",
    "+a",
    "-",
    "-*** End Patch",
    " ",
    " *** End Patch",
    "",
    "x",
    "\r",
    "+\u2028\x85\r",
]

ADDED = st.tuples(st.just("*** Add File: a"), st.lists(st.sampled_from(["+", "+x", "+*** End Patch"]), min_size=1))
DELETED = st.tuples(st.just("*** Delete File: b \t"), st.just(list[str]()))
CHANGED = st.lists(st.sampled_from(["@@", "@@ f()", "+x", "-", " y", "+@@", " "]), max_size=6)
UPDATED = st.tuples(
    st.just("*** Update File: c"),
    st.builds(
        lambda moved, changed, ended: [*moved, *changed, *(ended if changed else [])],
        st.sampled_from([[], ["*** Move to: d"]]),
        CHANGED,
        st.sampled_from([[], ["*** End of File"]]),
    ),
)
OPERATION = st.one_of(ADDED, DELETED, UPDATED).map(lambda parts: [parts[0], *parts[1]])


@st.composite
def near_patches(draw: st.DrawFn) -> str:
    """Texts that are patches, or were before one or two lines or characters changed."""
    operations = draw(st.lists(OPERATION, min_size=0 if draw(st.integers(0, 9)) == 0 else 1, max_size=3))
    lines = ["*** Begin Patch", *(line for lines in operations for line in lines), "*** End Patch"]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        lines[at : at + draw(st.integers(0, 1))] = draw(st.lists(st.sampled_from(LINES), max_size=2))
        lines = lines or [""]
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))
    if draw(st.booleans()):
        return text
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from(["", "\n", " ", "+", "\r"])) + text[at + draw(st.integers(0, 1)) :]


def test_the_judge_knows_patches_from_others() -> None:
    assert judged(WHOLE) == ["new.txt", "a b.py", "c.py", "gone.txt", "d"]
    assert judged(WHOLE.replace("+one", "one")) is None


def test_recorded_patches_are_read_as_the_grammar_reads_them() -> None:
    patches = [case["patch"] for case in json.loads((SCENARIOS / "apply_patch.json").read_text())]

    assert [read(patch) for patch in patches] == [judged(patch) for patch in patches]


@pytest.mark.sampled
@settings(max_examples=rounds(150, 4_000))
@given(st.one_of(near_patches(), st.lists(st.sampled_from(LINES), max_size=8).map("\n".join)))
@example("*** Begin Patch\n*** Update File: a\n@@ \n*** End Patch")
@example("*** Begin Patch\n*** Update File: a\n@@\n*** End of File\n*** End Patch\n")
def test_the_parser_accepts_what_the_grammar_does(text: str) -> None:
    assert read(text) == judged(text)
