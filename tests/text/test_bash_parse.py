"""Shell commands, read: every command that would run is found, or it is said that nobody knows."""

import json
import os.path
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.rules import Need, matches
from app.text.bash.needs import CommandNeeds, command_needs
from app.text.bash.parse import parse, parse_argv
from app.text.bash.safe_commands import is_safe
from app.text.bash.script import Script, SimpleCommand, Unclear
from app.text.patch.from_shell import intercepted_patch
from tests.support.scale import rounds
from tests.text.shell_grammar import Reference, make

ROWS = json.loads((Path(__file__).parent.parent / "scenarios" / "shell_commands.json").read_text())


def want(script: str) -> CommandNeeds:
    return command_needs(parse(script))


def patterns(script: str) -> list[str]:
    return [need.pattern for need in want(script).needs]


@pytest.mark.parametrize("row", ROWS, ids=[f"{number:03}" for number in range(len(ROWS))])
def test_a_script_wants_what_it_would_do(row: dict[str, Any]) -> None:
    if row.get("unreadable"):
        assert isinstance(parse(row["script"]), Unclear)
        assert [need.is_unclear for need in want(row["script"]).needs] == [True]
        return
    found = want(row["script"])
    assert isinstance(parse(row["script"]), Script)
    assert {
        "patterns": [need.pattern for need in found.needs if not need.is_unclear],
        "unclear": [need.pattern for need in found.needs if need.is_unclear],
        "folders": list(found.folders),
        "writes": list(found.writes),
        "reads": list(found.reads),
    } == {"patterns": [], "unclear": [], "folders": [], "writes": [], "reads": []} | {
        name: value for name, value in row.items() if name != "script"
    }


def test_the_table_is_a_table() -> None:
    assert len(ROWS) >= 300
    assert len({row["script"] for row in ROWS}) == len(ROWS)


def test_no_way_of_writing_it_slips_past_a_rule(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        'g"it" push',
        "\\git push",
        "'git'  push --force",
        "$'\\x67it' push",
        "/usr/bin/git push",
        "git -C . push",
        "git -c a=b --no-pager push origin",
        "A=b git push",
        "sudo git push",
        "env -i git push",
        "bash -lc 'git push'",
        "eval 'git push'",
        "(git push)",
        "echo $(git push)",
        "echo `git push`",
        "if git push; then :; fi",
        "true && git push",
        "git > f push",
        "git <<E push\nx\nE",
        "find . -exec git push \\;",
        "xargs -n 1 git push",
        "x() { git push; }",
        "trap 'git push' EXIT",
        "alias x='git push'",
        "timeout 5 nice git push",
        "bash <<'E'\ngit push\nE",
        "git \\\n  push",
        "cat <(git push)",
        "git push&",
        "cd x && git push",
    ]
    for script in cases:
        with subtests.test(script=script):
            assert any(matches("git push*", need.pattern) for need in want(script).needs)


@pytest.mark.parametrize(
    "script",
    [
        "git $X",
        "git {push,origin}",
        "git pus[h]",
        "$G push",
        "g$X push",
        "eval $X",
        "echo push | xargs git",
        'git "$@"',
    ],
)
def test_what_could_be_it_is_asked_whatever_rules_allow(script: str) -> None:
    assert any(need.is_unclear for need in want(script).needs)


def test_an_always_allows_what_is_told_by_the_same_words_and_no_more(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str | None]]] = [
        ("git push origin main", ["git push *"]),
        ("/usr/bin/git push origin", ["/usr/bin/git push *", "git push *"]),
        ("git -C x status", ["git -C *", "git status *"]),
        ("ls -la", ["ls *"]),
        ("npm run build", ["npm run build *"]),
        ("sudo git push", ["sudo *", "git push *"]),
        ("bash -lc 'git push'", ["bash -lc *", "git push *"]),
        ("bash x.sh", ["bash *"]),
        ("PATH=/x git log", ["git log *", "PATH=/x git log *"]),
        ("git log $X", ["git log *"]),
        ("rm *.py", ["rm *"]),
        ("git $X", [None]),
        ("'*' x", [None]),
        ("export PATH=/x", [None]),
        ("if", [None]),
    ]
    for script, always in cases:
        with subtests.test(script=script, always=always):
            assert [need.always for need in want(script).needs] == always


def test_a_need_of_what_is_unreadable_is_the_script_in_one_line() -> None:
    assert want("if  a\n then\t\x1b[1m").needs == (Need("shell", "if a then \\x1b[1m"),)
    assert want("").needs == ()
    assert want("'" + "x" * 10_000).needs[0].pattern == "'" + "x" * 4_095


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["git", "push"], ["git push"]),
        (["git", "commit", "-m", "a  b; rm x"], ["git commit -m a b; rm x"]),
        (["echo", "$(rm x)", "`rm y`", "> f", "*"], ["echo $(rm x) `rm y` > f *"]),
        (["bash", "-lc", "git push && ls > f"], ["bash -lc git push && ls > f", "git push", "ls"]),
        (["/bin/sh", "-c", "a"], ["/bin/sh -c a", "sh -c a", "a"]),
        (["env", "A=b", "git", "push"], ["env A=b git push", "git push"]),
        (["xargs", "rm"], ["xargs rm", "rm"]),
        (["$CMD"], ["$CMD"]),
        (["if", "a"], ["if a"]),
    ],
)
def test_an_argv_is_one_command_whose_words_are_as_they_are(argv: list[str], expected: list[str]) -> None:
    found = command_needs(parse_argv(argv))

    assert [need.pattern for need in found.needs] == expected
    assert not any(need.is_unclear for need in found.needs)


def test_a_script_in_an_argv_is_read_like_any_other() -> None:
    found = command_needs(parse_argv(["bash", "-c", "cd a && b > c; $X"]))

    assert (found.folders, found.writes) == (("a",), ("a/c",))
    assert [need.pattern for need in found.needs if need.is_unclear] == ["$X"]


@pytest.mark.parametrize("argv", [[], ["a\0b"], [""]])
def test_an_argv_that_cannot_run_is_unclear(argv: list[str]) -> None:
    assert all(need.is_unclear for need in command_needs(parse_argv(argv)).needs)
    assert command_needs(parse_argv(argv)).needs


def test_commands_wrapped_in_each_other_are_unclear_at_some_depth() -> None:
    assert any(need.is_unclear for need in want("sudo " * 20 + "rm x").needs)
    assert not any(need.is_unclear for need in want("sudo " * 5 + "rm x").needs)


def test_what_is_too_much_is_unclear_and_no_accident(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "(" * 10_000 + "a" + ")" * 10_000,
        "$(" * 10_000 + "a" + ")" * 10_000,
        'echo "$(' * 5_000 + ')"' * 5_000,
        "{ " * 10_000 + "a" + "; }" * 10_000,
        "if a; then " * 5_000 + "b" + "; fi" * 5_000,
        "a && " * 10_000 + "a",
        "a | " * 10_000 + "a",
        "a; " * 10_000,
        "${" * 10_000,
        "x" * (256 * 1024 + 1),
        "\u00e9" * (200 * 1024),
    ]
    for script in cases:
        with subtests.test(script=script):
            assert isinstance(parse(script), Unclear)


def test_a_lone_surrogate_is_no_script() -> None:
    assert isinstance(parse("echo \ud800"), Unclear)


@pytest.mark.parametrize("script", ["{\U0010ffff", "{1\U0007c8d6", "{1..\U00101a62", "{1..2\u4e2d}", "{\u0101"])
def test_any_character_may_stand_behind_a_brace(script: str) -> None:
    assert isinstance(parse(script), Script | Unclear)


def test_characters_of_other_scripts_in_braces_are_read() -> None:
    script = parse("python -c \"print(f'{名}')\" {中,国} <<'EOF'\n{名}\nEOF\n")

    assert isinstance(script, Script)
    assert [word.text for word in script.commands[0].words] == ["python", "-c", "print(f'{名}')", "{中,国}"]


def test_a_tag_in_another_script_is_unclear() -> None:
    """Characters are told apart by the parser only where it can read them."""
    assert isinstance(parse("cat <<'{中'\n{国\ncat <<'X'\n{中\nrm -r a\nX\n"), Unclear)


SIGNS = "abc \n\t;&|(){}[]<>$`'\"\\#!*?~=-+%^@,:/\r\v\0\u00a0é1E\u3000中\U0010ffff"
TOKENS = """$( ${ $(( )) <<E <<'E' E [[ ]] if then fi do done case esac in ;; for while git rm && || >& <<< $' eval bash
    -c cd find -exec xargs env sudo export x= apply_patch function () { @P"""
TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from([*SIGNS, *TOKENS.split(), "\nE\n", "<<E\n", "\\\n", "; "]), max_size=24
).map("".join)


@pytest.mark.sampled
@settings(max_examples=rounds(300, 4_000))
@given(TEXTS)
@example("cat <<'E'")
@example("\\")
def test_any_text_is_a_script_or_unclear(text: str) -> None:
    script = parse(text)
    assert isinstance(script, Script | Unclear)
    found = command_needs(script)
    assert all(need.pattern.isprintable() for need in found.needs)
    assert not (is_safe(script) and (found.writes or any(need.is_unclear for need in found.needs)))
    intercepted_patch(text)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.at(tmp_path_factory.mktemp("reference"))


@pytest.mark.sampled
def test_all_that_the_shell_runs_and_writes_was_found(reference: Reference) -> None:
    """What the scripts that are wholly clear run and write must be what was read; a third of all scripts must be."""
    clear, scripts = 0, rounds(100, 3_000)
    for seed in range(scripts):
        script = make(seed)
        read = parse(script)
        found = command_needs(read)
        if isinstance(read, Unclear) or any(need.is_unclear for need in found.needs):
            continue
        clear += 1
        calls, files = reference.run(script)
        commands = list(_commands(read))
        assert [call for call in calls if not any(_covers(command, call) for command in commands)] == [], script
        assert files <= {os.path.normpath(path) for path in found.writes}, script
        assert not (is_safe(read) and (calls or files)), script
    assert clear > scripts / 3


def _commands(script: Script) -> Iterator[SimpleCommand]:
    for part in script.with_inner():
        yield from part.commands


def _covers(command: SimpleCommand, call: list[str]) -> bool:
    """A word that is not known may have become any number of words."""
    if command.name.text != call[0]:
        return False
    texts = [word.text for word in command.words]
    if all(word.is_static and not word.text.startswith("~") for word in command.words):
        return texts == call
    known = [word.text for word in command.words if word.is_static and not word.text.startswith("~")]
    return all(text in call for text in known)


def test_a_long_script_is_read_whole() -> None:
    line = "git commit -m 'hello there' --flag value > out.txt\n"
    script = parse(line * 2_000)

    assert isinstance(script, Script)
    assert len(script.commands) == 2_000
    assert len(line) * 2_000 > 100_000


def test_a_long_document_is_read_whole() -> None:
    script = parse("cat > a.py <<'EOF'\n" + "x = [f'{a}' for a in $(b)] | `c`\n" * 5_000 + "EOF\nls\n")

    assert [need.pattern for need in command_needs(script).needs] == ["cat", "ls"]
    assert command_needs(script).writes == ("a.py",)


def test_threads_do_not_read_each_others_scripts() -> None:
    scripts = [f"a{number} " * 300 + f"$(b{number})" + "\n" * 9_000 for number in range(16)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(patterns, scripts))

    assert [names[-1] for names in found] == [f"b{number}" for number in range(16)]


BROKEN = [
    "a|",
    "${",
    "[[ $x",
    "&&>;",
    "))$((",
    "a=(",
    ">&",
    "<<a;",
    "'",
    "`",
    "|fi \\\n",
    "((;<in ",
    "<<a\n",
    "[[ $x\n",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("unit", BROKEN, ids=map(str, range(len(BROKEN))))
def test_what_is_broken_over_and_over_is_given_up_soon(unit: str) -> None:
    """Each of these would keep the parser busy for minutes: what is broken costs it the square of the length."""
    assert isinstance(parse(unit * (250_000 // len(unit)) + "("), Unclear)
