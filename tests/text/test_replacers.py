import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from app.core.errors import EditMismatch
from app.text.edit import candidates, nearest_lines, replacers
from app.text.edit.candidates import SPACES, TextViews
from app.text.edit.diff import Span, lines_of
from app.text.edit.replacers import STRATEGIES, explain_mismatch, replace
from tests.text import plain_replacers
from tests.text.work_counter import Work, work_of

RECORDED = json.loads((Path(__file__).parent.parent / "scenarios" / "edit_replace.json").read_text())

DEVIATIONS: dict[str, tuple[str, str, str]] = {
    "line trimmed leading ws": ("    Z\nx", "LineTrimmedReplacer", "the indentation of the file is kept"),
    "line trimmed: 4sp vs 3sp": (
        "alpha\n   new_line\ngamma",
        "LineTrimmedReplacer",
        "the file indents by three, so the new line does",
    ),
    "python indentation trap": (
        "def f():\n        if c:\n            n = calc2()\n            return n\n",
        "LineTrimmedReplacer",
        "the new lines stand where the old ones stood",
    ),
    "dollar dollar replaceAll": ("$$ $$", "SimpleReplacer", "the new text is taken literally"),
    "crlf content lf find": ("Z\r\nc", "SimpleReplacer", "line ends are no part of the search, and are kept"),
}
"""Where we answer otherwise than the peer was recorded: the text, the replacer, and why."""


def outcome(content: str, old: str, new: str, **more: bool) -> tuple[str | None, str | None]:
    """The new text and who made it; or None and why there is none."""
    try:
        replaced = replace(content, old, new, **more)
    except EditMismatch as error:
        return None, (error.details or {})["reason"]
    return replaced.text, replaced.strategy


def test_it_answers_as_the_peer_was_recorded(subtests: pytest.Subtests) -> None:
    for case in RECORDED:
        with subtests.test(case=case):
            text, who = outcome(case["content"], case["oldString"], case["newString"], replace_all=case["replaceAll"])

            if case["name"] in DEVIATIONS:
                assert (text, who) == DEVIATIONS[case["name"]][:2]
                assert (text, who) != (case.get("output"), case["strategy"])
            elif "error" in case:
                assert (text, who) == (None, "ambiguous" if "multiple matches" in case["error"] else "not_found")
            else:
                assert (text, who) == (case["output"], case["strategy"])


def test_every_deviation_is_one_of_a_recorded_case() -> None:
    assert set(DEVIATIONS) <= {case["name"] for case in RECORDED}


def test_the_nine_replacers_come_in_the_order_of_the_peer() -> None:
    assert [name for name, _ in STRATEGIES] == list(plain_replacers.REPLACERS)


@pytest.mark.parametrize(
    ("strategy", "content", "old", "expected"),
    [
        ("SimpleReplacer", "a b c", "b", "a NEW c"),
        ("LineTrimmedReplacer", "  x = 1  \ny", "x = 1\t", "  NEW\ny"),
        ("BlockAnchorReplacer", "a {\n  same\n  one\n  two\n}", "a {\n  same\n  one\n  twe\n}", "NEW"),
        ("WhitespaceNormalizedReplacer", "call(a,   b)", "(a, b)", "callNEW"),
        ("WhitespaceNormalizedReplacer", "one  two\nthree", "one two\nthree", "NEW"),
        ("EscapeNormalizedReplacer", 'say "a\tb"', 'say \\"a\\tb\\"', "NEW"),
        ("EscapeNormalizedReplacer", "say \\'hi\\'", "say 'hi'", "NEW"),
        ("TrimmedBoundaryReplacer", "f({a\nb}, 1)", "  {a\nb}\n", "f(NEW, 1)"),
        ("ContextAwareReplacer", "a {\nsame\nlong long long\n}", "a {\nsame\nx\n}", "NEW"),
    ],
)
def test_each_replacer_finds_what_those_before_it_do_not(strategy: str, content: str, old: str, expected: str) -> None:
    assert outcome(content, old, "NEW") == (expected, strategy)
    assert outcome(content, old, "NEW", strict=True) == (
        (expected, strategy) if strategy == "SimpleReplacer" else (None, "not_found")
    )


def test_lines_moved_as_a_whole_are_found_though_earlier_replacers_find_them_too() -> None:
    page, wanted = TextViews("  a\n    b\n\n a\n  b\n"), "a\n  b\n"

    [candidate] = candidates.indentation_flexible(page, wanted)

    assert candidate.text == "  a\n    b\n"


def test_of_several_blocks_the_most_similar_one_is_meant() -> None:
    content = "begin\n  alpha beta\n  gamma\nend\n\nbegin\n  alpha bets\n  gamma delta\nend\n"

    replaced = replace(content, "begin\n  alpha bett\n  gamma delta\nend", "X")

    assert (replaced.text, replaced.strategy) == (
        "begin\n  alpha beta\n  gamma\nend\n\nX\n",
        "BlockAnchorReplacer",
    )
    assert (replaced.first_line, replaced.last_line) == (6, 9)


def test_a_match_much_larger_than_what_was_asked_for_is_refused() -> None:
    content = "open\n" + "\n".join(["same"] * 6) + "\n" + "x" * 1000 + "\nclose"
    wanted = "open\n" + "\n".join(["same"] * 6) + "\ny\nclose"

    with pytest.raises(EditMismatch, match="lines 1 to 9") as caught:
        replace(content, wanted, "X")

    assert caught.value.details == {"reason": "disproportionate", "lines": [1, 9]}


def test_escaped_line_ends_do_not_make_a_match_larger_than_it_may_be() -> None:
    assert outcome("a\nb\nc", "a\\nb\\nc", "X") == ("X", "EscapeNormalizedReplacer")
    assert outcome("a\nb\nc\nd", "a\\nb\\nc\\nd", "X") == (None, "disproportionate")


def test_an_ambiguous_piece_is_told_with_its_lines() -> None:
    with pytest.raises(EditMismatch, match=r"old_string occurs 3 times \(lines 1, 3, 4\)") as caught:
        replace("x\ny\nx\nx\n", "x", "z")

    assert caught.value.details == {"reason": "ambiguous", "count": 3, "lines": [1, 3, 4]}


def test_only_the_first_places_of_many_are_told() -> None:
    with pytest.raises(EditMismatch, match=r"similar to old_string occurs 20 times \(lines 1, 2, 3, 4, 5 and more\)"):
        replace("\tx;\n" * 20, "  x;", "z")


def test_white_space_that_is_not_there_is_not_found(subtests: pytest.Subtests) -> None:
    replace_alls: list[bool] = [False, True]
    for content in ["abc", "a\nb\n", "", "a\n\nb", "a\n \nb", "\t"]:
        for needle in ["   ", "\n\n\n", " \n ", "\t\t"]:
            for replace_all in replace_alls:
                with subtests.test(content=content, needle=needle, replace_all=replace_all):
                    assert outcome(content, needle, "X", replace_all=replace_all) == (None, "not_found")


def test_white_space_that_is_there_can_be_replaced() -> None:
    assert outcome("a\n\n\nb", "\n\n\n", "\n") == ("a\nb", "SimpleReplacer")


def test_the_new_text_is_taken_literally(subtests: pytest.Subtests) -> None:
    content_cases: list[tuple[str, str]] = [("a b", "a"), ("  a  \nb", "a\nb"), ("a   b", "a b")]
    replace_alls: list[bool] = [False, True]
    for new in ["$&", "$$", "$1", "\\1", "\\g<0>", "\\n", "$`", "{0}", "%s"]:
        for content, old in content_cases:
            for replace_all in replace_alls:
                with subtests.test(new=new, content=content, old=old, replace_all=replace_all):
                    text, _ = outcome(content, old, new, replace_all=replace_all)

                    assert text is not None
                    assert new in text


def test_line_ends_stay_as_they_are_around_the_edit(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str, str]] = [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "a\r\nb", "x\ny", "x\r\ny\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "  a\n  b", "x\n  y", "x\r\ny\r\nc\r\n"),
        ("a\nb\nc\n", "a\r\nb", "x\r\ny", "x\ny\nc\n"),
        ("a\rb\rc", "a\nb", "x\ny\nz", "x\ry\rz\rc"),
        ("a\rb\rc", "a\r\nb", "x\r\ny", "x\ry\rc"),
        ("one", "one", "a\r\nb", "a\r\nb"),
        ("a\nb\r\nc\n", "b", "x\ny", "a\nx\r\ny\r\nc\n"),
        ("a\r\nb\nc\r\nd\n", "b\nc\n", "b\nx\nc\n", "a\r\nb\nx\nc\r\nd\n"),
        ("a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nb\nC\nd", "a\r\nb\nC\r\nd\n"),
        ("1%\r2%\r3%\ndone\n", "2%", "9%", "1%\r9%\r3%\ndone\n"),
        ("1%\r2%\ndone\n", "%\r2", "%\r\r2", "1%\r\r2%\ndone\n"),
        ("a\r\nb\n", "a\r", "a", "a\nb\n"),
    ]
    for content, old, new, expected in cases:
        with subtests.test(content=content, old=old, new=new, expected=expected):
            assert outcome(content, old, new)[0] == expected


def test_a_needle_is_ambiguous_whatever_its_lines_end_in() -> None:
    assert outcome("a\r\nb\n\na\nb\n", "a\nb", "x") == (None, "ambiguous")
    assert outcome("a\r\nb\n\na\nb\n", "a\nb", "x\ny", replace_all=True)[0] == "x\r\ny\n\nx\ny\n"


INDENTS = st.sampled_from(["", "  ", "    ", "\t", " \t"])
WORDS = st.sampled_from(
    [
        "foo",
        "bar",
        "a b",
        "a  b",
        "}",
        "{",
        "aaaa",
        "aaab",
        "\\n",
        "\\",
        "\\\\",
        "'q'",
        "\\'q\\'",
        "$x",
        "\xa0",
        "é",
        "",
    ]
)
LINES = st.builds(
    lambda indent, words, tail: indent + " ".join(words) + tail,
    INDENTS,
    st.lists(WORDS, max_size=3),
    st.sampled_from(["", "", " ", "\t"]),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Few different lines in many places, so that much is nearly alike."""
    pool = draw(st.lists(LINES, min_size=1, max_size=6))
    return "\n".join(draw(st.lists(st.sampled_from(pool), max_size=12))) + draw(st.sampled_from(["", "\n"]))


@st.composite
def needles(draw: st.DrawFn, content: str) -> str:
    """Something of the text, changed as models change what they remember."""
    lines = content.split("\n")
    start = draw(st.integers(0, len(lines) - 1))
    taken = lines[start : start + draw(st.integers(1, 7))]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(taken) - 1))
        change: Callable[[str], str] = draw(
            st.sampled_from([str.strip, str.rstrip, lambda line: line.replace(" ", "  "), lambda line: f"  {line} "])
        )
        taken[place] = draw(LINES) if draw(st.booleans()) else change(taken[place])
    whole = "\n".join(taken)
    spread: Callable[[str], str] = draw(
        st.sampled_from(
            [
                lambda text: text,
                lambda text: f"{text}\n",
                lambda text: f"\n {text}\n\n",
                lambda text: text.replace("\n", "\\n"),
                lambda text: text.replace("\n", " "),
                lambda text: text.replace(" ", "\n", 1),
                lambda text: text.replace("'", "\\'"),
                lambda text: text[1:-1],
            ]
        )
    )
    return spread(whole)


@pytest.mark.sampled
@given(st.data())
def test_the_fast_replacers_agree_with_the_plain_ones(data: st.DataObject) -> None:
    content = data.draw(texts())
    wanted, replace_all = data.draw(needles(content)), data.draw(st.booleans())
    assume(wanted.strip(SPACES))
    expected = plain_replacers.find(content, wanted, replace_all)
    event(expected.strategy or expected.reason or "")

    got = outcome(content, wanted, "", replace_all=replace_all)

    if expected.piece is None:
        assert got == (None, expected.reason)
    else:
        count = -1 if replace_all else 1
        assert got == (content.replace(expected.piece, "", count), expected.strategy)


ENDS = ["\r\n", "\n", "\r\n\r\n"]
OLD = st.lists(st.sampled_from([*"abcdefghij", " ", "$", *ENDS]), min_size=1, max_size=16).map("".join)
NEW = st.lists(st.sampled_from([*"uvwxyz", "$&", "\\1", "é", *ENDS]), min_size=1, max_size=6).map("".join)


@pytest.mark.sampled
@given(st.data())
def test_an_edit_and_its_reverse_give_the_text_back(data: st.DataObject) -> None:
    """An edit to the letter, and the same edit backwards."""
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    content = data.draw(OLD).replace("\r\n", "\n").replace("\n", end)
    start = data.draw(st.integers(0, len(content) - 1))
    stop = data.draw(st.integers(min(start + 1, len(content)), len(content)))
    old, new = content[start:stop], data.draw(NEW)
    assume("\r\n" not in (content[start - 1 : start + 1], content[stop - 1 : stop + 1]))
    try:
        there = replace(content, old, new, strict=True)
        back = replace(there.text, new, old, strict=True)
    except EditMismatch:
        assume(False)

    assert back.text == content


@given(
    lines=st.lists(st.tuples(st.sampled_from(["", "  a", "b  ", "c\rd", "\té"]), st.sampled_from(["\n", "\r\n"]))),
    place=st.integers(0, 20),
    spacing=st.sampled_from(["", "  ", "\t"]),
    count=st.integers(0, 3),
)
def test_lines_that_are_not_edited_stay_to_the_byte(
    lines: list[tuple[str, str]], place: int, spacing: str, count: int
) -> None:
    """The edited line is found to the letter, or but for the space around it."""
    before = "".join(text + end for text, end in lines[:place])
    after = "".join(text + end for text, end in lines[place:])
    new = "\n".join(["new"] * count)

    replaced = replace(f"{before}  target{after}", f"{spacing}target", new).text

    assert replaced.startswith(before)
    assert replaced.endswith(after)
    assert replaced[len(before) : len(replaced) - len(after)].count("new") == count


@given(st.text("ab\n$\\", max_size=30), st.text("ab\n", min_size=1, max_size=3), st.text("a$&\\\n1", max_size=5))
def test_to_replace_all_is_to_replace_literally(content: str, old: str, new: str) -> None:
    assume(old in content)

    replaced = replace(content, old, new, replace_all=True)

    assert (replaced.text, replaced.strategy, replaced.count) == (
        content.replace(old, new),
        "SimpleReplacer",
        content.count(old),
    )


@given(st.text("ab \n", max_size=40), st.text("ab \n", min_size=1, max_size=6), st.text("ab\n", max_size=6))
def test_spans_tell_what_became_of_the_lines(content: str, old: str, new: str) -> None:
    try:
        replaced = replace(content, old, new, replace_all=True)
    except EditMismatch:
        assume(False)
    lines = lines_of(content)

    for span in reversed(replaced.spans):
        assert lines[span.start : span.start + len(span.old)] == span.old
        lines[span.start : span.start + len(span.old)] = span.new

    assert "".join(lines) == replaced.text


FIFTY = [f"wanted line {number} of fifty" for number in range(50)]
HOSTILE: dict[str, tuple[Callable[[int], str], str]] = {
    "nothing alike": (lambda n: "".join(f"    value_{i} = compute({i})\n" for i in range(n)), "\n".join(FIFTY)),
    "the first line in every other place": (
        lambda n: "".join("wanted line 0 of fifty\n" if i % 2 else f"  v{i} = {i}\n" for i in range(n)),
        "\n".join(FIFTY),
    ),
    "a block of the right length at every turn": (
        lambda n: "".join("begin\n" if i % 2 else "end\n" if i % 50 == 0 else f" v = {i}\n" for i in range(n)),
        "\n".join(["begin", *(f"v = {i}0" for i in range(48)), "end"]),
    ),
    "the same line over and over": (lambda n: "a\n" * n, "a\n" * 49 + "b"),
    "the same lines over and over, moved": (lambda n: "".join(" " * (i % 40) + "a\n" for i in range(n)), "a \n" * 50),
    "one long line": (lambda n: "a a\\ " * n, "a  a\\ " * 49 + "b"),
    "backslashes everywhere": (lambda n: "\\a\\\\\n" * n, "\\a\\\\\n" * 49 + "\\a\\"),
    "blank lines everywhere": (lambda n: " \n\t\n" * n, "\n\n x \n\n"),
}


def search(content: str, old: str) -> Work:
    def answer() -> None:
        with pytest.raises(EditMismatch) as caught:
            replace(content, old, "new")
        explain_mismatch(caught.value, "a.py", old, "new", content)

    return work_of(answer)


def test_the_count_of_work_bites() -> None:
    """A search in the whole text for each of its lines grows by the square."""

    def square(text: str) -> Work:
        return work_of(lambda: [text.find(line, 1) for line in text.split("\n")])

    assert square("a\n" * 400).searched > 15 * square("a\n" * 100).searched


@pytest.mark.parametrize("shape", HOSTILE)
def test_the_work_grows_as_the_text_does(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is a mismatch here, with the nearest lines looked for: nothing costs more.

    What is bounded by a number is bounded by a small one, so that even these texts reach it. Four times the text
    would be sixteen times the work, if that grew by the square.
    """
    monkeypatch.setattr(candidates, "MAX_PLACES", 50)
    monkeypatch.setattr(nearest_lines, "MAX_OCCURRENCES", 20)
    monkeypatch.setattr(candidates, "MAX_STEPS", 20_000)
    text, old = HOSTILE[shape]

    short, long = search(text(2500), old), search(text(10_000), old)

    assert long.calls < 6 * short.calls
    assert long.searched < 6 * short.searched


@pytest.mark.parametrize("ends", [["\n"], ["\r\n"], ["\n", "\r\n"]])
@pytest.mark.parametrize("new", ["b", "b\nc"])
def test_to_replace_all_costs_as_much_for_each_place(ends: list[str], new: str) -> None:
    def everywhere(count: int) -> Work:
        content = "".join(f"a {i}{ends[i % len(ends)]}" for i in range(count))
        return work_of(lambda: replace(content, "a", new, replace_all=True))

    assert everywhere(4000).calls < 6 * everywhere(1000).calls


def test_of_many_changes_each_is_told_by_its_lines() -> None:
    content = "".join(f"{i}\nsame\n" for i in range(300))

    replaced = replace(content, "\nsame", "\nnew", replace_all=True)

    assert replaced.text == content.replace("same", "new")
    assert (replaced.count, replaced.spans[1]) == (300, Span(2, ["1\n", "same\n"], ["1\n", "new\n"]))


def test_a_hundred_thousand_lines_are_answered_in_a_few_steps_for_each() -> None:
    content = HOSTILE["the first line in every other place"][0](100_000)

    work = search(content, "\n".join(FIFTY))

    assert work.calls < 10 * 100_000
    assert work.searched < 200 * len(content)


@pytest.mark.parametrize("steps", [10, 25])
def test_a_search_that_would_take_too_long_guesses_nothing(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "begin\n" + "\n".join(f"line number {i} is here" for i in range(20)) + "\nend"
    wanted = "begin\n" + "\n".join(f"line number {i} was here" for i in range(20)) + "\nend"

    assert outcome(content, wanted, "x") == ("x", "BlockAnchorReplacer")
    monkeypatch.setattr(candidates, "MAX_STEPS", steps)
    assert outcome(content, wanted, "x") == (None, "not_found")


def test_so_many_places_that_none_can_be_meant_are_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "".join(f"{' ' * (i % 40)}a\n{' ' * (i % 40)}b\n" for i in range(80))

    monkeypatch.setattr(replacers, "MAX_CHECKED", 5)

    assert outcome(content, "a \nb ", "x") == (None, "ambiguous")
