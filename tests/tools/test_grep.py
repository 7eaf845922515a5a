import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import FileFailed, InvalidArgs, OutsideWorkspace
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context
from app.tools.files import glob, grep, grep_files
from app.tools.files.grep import tool
from tests.tools.conftest import ToyContext

MORE = "[there is more; narrow the search, or raise the limit]"


async def search(ctx: Context, **arguments: Any) -> Result:
    async with asyncio.timeout(30):
        return await tool.run(tool.parse(arguments), ctx)


async def lines(ctx: Context, **arguments: Any) -> list[str]:
    return (await search(ctx, **arguments)).output.split("\n")


def put(workspace: Path, name: str, text: str | bytes = "needle\n") -> None:
    (workspace / name).parent.mkdir(parents=True, exist_ok=True)
    (workspace / name).write_bytes(text if isinstance(text, bytes) else text.encode())


async def test_matching_lines_come_in_the_order_of_paths_and_lines(ctx: Context, workspace: Path) -> None:
    put(workspace, "b.txt", "one needle\ntwo\nneedle three\n")
    put(workspace, "a-b/x.txt")
    put(workspace, "a/x.txt", "  needle")

    result = await search(ctx, pattern="needle")

    assert result.output.split("\n") == [
        "a/x.txt:1:   needle",
        "a-b/x.txt:1: needle",
        "b.txt:1: one needle",
        "b.txt:3: needle three",
    ]
    assert result.metadata == {"matches": 4, "files": 3, "has_more": False, "left_out": 0}


async def test_the_order_is_the_same_every_time(ctx: Context, workspace: Path) -> None:
    for number in range(200):
        put(workspace, f"d{number % 7}/f{number}.txt", "needle\n" * (number % 3 + 1))

    answers = {(await search(ctx, pattern="needle", limit=50)).output for _ in range(5)}

    [answer] = answers
    assert [line.partition(":")[0] for line in answer.split("\n")[:3]] == ["d0/f0.txt", "d0/f105.txt", "d0/f112.txt"]


async def test_names_are_those_read_file_takes_whatever_path_was_searched(ctx: Context, workspace: Path) -> None:
    put(workspace, "sub/deep/a.txt")
    (workspace / "link").symlink_to("sub")

    for path in ("", ".", "sub", "sub/deep/", "link", "link/deep/a.txt", str(workspace / "sub")):
        assert await lines(ctx, pattern="needle", path=path) == ["sub/deep/a.txt:1: needle"]


async def test_a_file_as_path_is_searched_alone(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")
    put(workspace, "b.txt")
    put(workspace, ".hidden")

    assert await lines(ctx, pattern="needle", path="a.txt") == ["a.txt:1: needle"]
    assert await lines(ctx, pattern="needle", path=".hidden", output="count") == [".hidden: 1"]
    assert await lines(ctx, pattern="needle", path="b.txt", output="files") == ["b.txt"]


async def test_nothing_found_is_an_answer(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")

    facts = {"matches": 0, "files": 0, "has_more": False, "left_out": 0}
    assert await search(ctx, pattern="x") == Result(output="No matches found.", title="x", metadata=facts)


LETTERS = "a\nb\nc\nd\ne\nf\ng\nh\ni\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"context": 1}, ["f-1- a", "f:2: b", "f-3- c", "--", "f-6- f", "f:7: g", "f-8- h"]),
        ({"before": 1}, ["f-1- a", "f:2: b", "--", "f-6- f", "f:7: g"]),
        ({"after": 1}, ["f:2: b", "f-3- c", "--", "f:7: g", "f-8- h"]),
        (
            {"context": 1, "after": 2},
            ["f-1- a", "f:2: b", "f-3- c", "f-4- d", "--", "f-6- f", "f:7: g", "f-8- h", "f-9- i"],
        ),
        ({"context": 2}, ["f-1- a", "f:2: b", "f-3- c", "f-4- d", "f-5- e", "f-6- f", "f:7: g", "f-8- h", "f-9- i"]),
        ({"context": 2, "limit": 1}, ["f-1- a", "f:2: b", "f-3- c", "f-4- d", MORE]),
        ({"context": 3, "limit": 1}, ["f-1- a", "f:2: b", "f-3- c", "f-4- d", "f-5- e", MORE]),
    ],
)
async def test_lines_around_a_match_are_told_apart_from_it(
    ctx: Context, workspace: Path, arguments: dict[str, Any], expected: list[str]
) -> None:
    put(workspace, "f", LETTERS)

    assert await lines(ctx, pattern="[bg]", **arguments) == expected


async def test_groups_of_different_files_are_parted(ctx: Context, workspace: Path) -> None:
    put(workspace, "a", "x\nneedle\n")
    put(workspace, "b", "x\n\nneedle\n")

    assert await lines(ctx, pattern="needle", before=1) == ["a-1- x", "a:2: needle", "--", "b-2- ", "b:3: needle"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, ["a:1: needle", MORE]),
        (3, ["a:1: needle", "a:2: needle", "b:1: needle", MORE]),
        (4, ["a:1: needle", "a:2: needle", "b:1: needle", "b:2: needle"]),
        ("5", ["a:1: needle", "a:2: needle", "b:1: needle", "b:2: needle"]),
    ],
)
async def test_the_limit_counts_matches_over_all_files_and_more_is_told_exactly(
    ctx: Context, workspace: Path, limit: Any, expected: list[str]
) -> None:
    put(workspace, "a", "needle\nneedle\n")
    put(workspace, "b", "needle\nneedle\n")

    result = await search(ctx, pattern="needle", limit=limit)

    assert result.output.split("\n") == expected
    assert result.metadata["has_more"] is (MORE in expected)
    assert result.metadata["matches"] == len([line for line in expected if line != MORE])


async def test_files_and_counts_have_the_same_limit(ctx: Context, workspace: Path) -> None:
    put(workspace, "a", "needle needle\nx\nneedle\n")
    put(workspace, "b")

    assert await lines(ctx, pattern="needle", output="count") == ["a: 2", "b: 1"]
    assert await lines(ctx, pattern="needle", output="count", limit=1) == ["a: 2", MORE]
    assert await lines(ctx, pattern="needle", output="files") == ["a", "b"]
    assert await lines(ctx, pattern="needle", output="files", limit=1) == ["a", MORE]
    assert (await search(ctx, pattern="needle", output="count")).metadata["matches"] == 3


async def test_too_much_to_be_read_is_searched_again_in_order(
    ctx: Context, workspace: Path, toy: ToyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        put(workspace, f"f{number:02}", "needle\n" * 50)
    plain = toy.search

    async def little(path: str, arguments: Any, **options: Any) -> Any:
        return await plain(path, arguments, **options | {"limit": 2000})

    monkeypatch.setattr(toy, "search", little)

    result = await search(ctx, pattern="needle", limit=30)

    assert result.output.split("\n") == [*(f"f00:{number}: needle" for number in range(1, 31)), MORE]


async def test_an_answer_that_is_too_long_is_cut_at_a_line(
    ctx: Context, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grep, "MAX_OUTPUT", 40)
    put(workspace, "a", "needle\n" * 10)

    assert await lines(ctx, pattern="needle") == ["a:1: needle", "a:2: needle", "a:3: needle", MORE]


async def test_long_lines_are_cut_like_those_of_read_file(ctx: Context, workspace: Path) -> None:
    put(workspace, "a", "x" * 499 + "éneedle" + "z" * 5000)
    put(workspace, "b", "é" * 400 + "needle")
    put(workspace, "c", "y" * 494 + "needle")

    assert await lines(ctx, pattern="needle") == [
        "a:1: " + "x" * 499,
        "b:1: " + "é" * 250,
        "c:1: " + "y" * 494 + "needle",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pattern": "NEEDLE"}, ["a:2: NEEDLE"]),
        ({"pattern": "NEEDLE", "ignore_case": True}, ["a:1: needle.", "a:2: NEEDLE"]),
        ({"pattern": "e.", "literal": True}, ["a:1: needle."]),
        ({"pattern": "\\.\nNEEDLE", "multiline": True}, ["a:1: needle.", "a:2: NEEDLE"]),
        ({"pattern": "--x"}, ["a:3: --x"]),
        ({"pattern": "^--x$"}, ["a:3: --x"]),
    ],
)
async def test_how_a_pattern_is_taken_can_be_said(
    ctx: Context, workspace: Path, arguments: dict[str, Any], expected: list[str]
) -> None:
    put(workspace, "a", "needle.\nNEEDLE\n--x\n")

    assert await lines(ctx, **arguments) == expected


async def test_the_end_of_a_line_is_where_a_windows_file_has_it(ctx: Context, workspace: Path) -> None:
    put(workspace, "a", "needle\r\nneedle x\r\n")

    assert await lines(ctx, pattern="needle$", after=1) == ["a:1: needle", "a-2- needle x"]
    assert await lines(ctx, pattern="needle$", output="count") == ["a: 1"]


async def test_text_that_is_no_utf8_is_shown_as_far_as_it_is(ctx: Context, workspace: Path) -> None:
    put(workspace, "latin", b"caf\xe9 needle\n")
    put(workspace, "sixteen", "\ufeffneedle é\n".encode("utf-16-le"))

    assert await lines(ctx, pattern="needle") == ["latin:1: caf\ufffd needle", "sixteen:1: needle é"]


async def test_of_a_binary_file_only_that_it_matches_is_told(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")
    put(workspace, "early.bin", b"\0needle\n")
    put(workspace, "late.bin", b"needle\n" + b"filler\n" * 40_000 + b"\0\nneedle\n")

    note = "[late.bin is binary; not all of its matches are shown]"
    assert await lines(ctx, pattern="needle") == ["a.txt:1: needle", "late.bin:1: needle", note]
    assert await lines(ctx, pattern="needle", path="early.bin") == ["early.bin: binary file matches"]


async def test_names_that_look_like_lines_do_not_confuse_it(ctx: Context, workspace: Path) -> None:
    names = ["a:1: x", "a\nb:2", "a-3-", "é", "x: WARNING: stopped"]
    for name in names:
        put(workspace, name)

    shown = sorted(names, key=os.fsencode)
    assert await lines(ctx, pattern="needle") == [name.replace("\n", "\\n") + ":1: needle" for name in shown]


async def test_hidden_and_ignored_files_are_searched_only_when_they_are_named(ctx: Context, workspace: Path) -> None:
    for name in ("a.txt", ".env", "x.log", ".github/workflows/ci.yml", ".git/config"):
        put(workspace, name)
    put(workspace, ".gitignore", "*.log\n")

    assert await lines(ctx, pattern="needle") == ["a.txt:1: needle"]
    assert await lines(ctx, pattern="needle", include=".github/**") == [".github/workflows/ci.yml:1: needle"]
    assert await lines(ctx, pattern="needle", path="x.log") == ["x.log:1: needle"]
    assert await lines(ctx, pattern="needle", include="*.log") == ["No matches found."]


async def test_files_that_rules_keep_from_the_call_are_left_out_and_counted(
    ctx: Context, workspace: Path, toy: ToyContext
) -> None:
    for name in ("a.txt", "key.pem", "z.txt"):
        put(workspace, name)
    toy.forbidden = {Need("read", "key.pem")}
    note = "[1 file left out: rules do not allow this call to read it]"

    for output, end in (("lines", ":1: needle"), ("count", ": 1"), ("files", "")):
        assert await lines(ctx, pattern="needle", output=output) == [f"a.txt{end}", f"z.txt{end}", note]
    assert await lines(ctx, pattern="needle", path="key.pem") == ["key.pem:1: needle"]
    assert await lines(ctx, pattern="needle", limit=1) == ["a.txt:1: needle", MORE, note]
    result = await search(ctx, pattern="needle", include="*.pem")
    assert result.output == f"No matches found.\n{note}"
    assert result.metadata == {"matches": 0, "files": 0, "has_more": False, "left_out": 1}


async def test_rules_are_asked_no_further_than_needed(
    ctx: Context, workspace: Path, toy: ToyContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        put(workspace, f"f{number:03}")
    asked = list[Need]()

    def may(needs: Sequence[Need]) -> list[bool]:
        asked.extend(needs)
        return [True] * len(needs)

    monkeypatch.setattr(toy, "is_allowed", may)

    await search(ctx, pattern="needle", limit=10)

    assert Need("read", "f010") in asked
    assert len(asked) < 100


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_what_cannot_be_read_is_told(ctx: Context, workspace: Path) -> None:
    put(workspace, "a.txt")
    put(workspace, "closed.txt")
    (workspace / "closed.txt").chmod(0)

    note = "[some files or folders could not be read and were not searched]"
    assert await lines(ctx, pattern="needle") == ["a.txt:1: needle", note]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": ""}, "`pattern`"),
        ({"pattern": "a["}, "unclosed character class"),
        ({"pattern": "a\nb"}, 'literal "\\\\n" is not allowed'),
        ({"pattern": "a", "include": "[a"}, "not a valid glob"),
        ({"pattern": "a", "output": "all"}, "`output`"),
        ({"pattern": "a", "limit": 0}, "`limit`"),
        ({"pattern": "a", "context": 101}, "`context`"),
        ({"pattern": "a", "context": -1}, "`context`"),
        ({"pattern": "a", "glob": "*"}, "`glob` is not a parameter"),
    ],
)
async def test_what_cannot_be_searched_for_is_said(ctx: Context, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgs, match=message):
        await search(ctx, **arguments)


async def test_a_path_that_is_not_there_or_leads_out_is_refused(ctx: Context) -> None:
    with pytest.raises(FileFailed, match="nope does not exist") as caught:
        await search(ctx, pattern="x", path="nope")
    with pytest.raises(OutsideWorkspace):
        await search(ctx, pattern="x", path="../x")

    assert caught.value.code == "ENOENT"


def test_it_needs_to_read_what_it_searches(ctx: Context) -> None:
    assert tool.needs(tool.parse({"pattern": "x"}), ctx.workspace) == [Need("read", ".")]
    assert tool.needs(tool.parse({"pattern": "x", "path": "a/b"}), ctx.workspace) == [Need("read", "a/b")]


async def test_a_path_that_is_not_there_is_answered_with_what_may_be_meant(ctx: Context, workspace: Path) -> None:
    (workspace / "source").mkdir()

    for searching in (grep.tool, grep_files.tool, glob.tool):
        with pytest.raises(FileFailed, match=r"Did you mean source\?") as caught:
            await searching.run(searching.parse({"pattern": "x", "path": "sourcee"}), ctx)
        assert caught.value.code == "ENOENT"
