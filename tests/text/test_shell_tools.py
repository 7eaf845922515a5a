"""What the tools that run command lines share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import OutsideWorkspace, PermissionDenied
from app.core.rules import Need, Rule, to_rule
from app.core.tools import Effect
from app.sandbox.files.workspace import LocalWorkspace
from app.text.bash.shell_tools import effect_of, needs_of, patch_of, script_of, title_of
from app.tools.exec.shell import Args

PATCH = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"


@pytest.fixture
def scope(tmp_path: Path) -> Iterator[LocalWorkspace]:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "link").symlink_to("sub")
    workspace = LocalWorkspace(tmp_path)
    yield workspace
    workspace.close()


def found(scope: LocalWorkspace, script: str, workdir: str = ".", **more: Any) -> list[tuple[str, str]]:
    """The needs of a script."""
    args = Args(command=["bash", "-lc", script], workdir=workdir, **more)
    return [(need.permission, need.pattern) for need in needs_of(args.command, workdir, scope, args)]


def escalated(scope: LocalWorkspace, script: str, *prefix: str) -> list[Need]:
    args = Args(
        command=["bash", "-lc", script],
        sandbox_permissions="require_escalated",
        justification="May I?",
        prefix_rule=list(prefix),
    )
    return needs_of(args.command, ".", scope, args)


@pytest.mark.parametrize(
    ("script", "needs"),
    [
        ("git push origin", [("shell", "git push origin")]),
        ("ls && rm -f $(cat list)", [("shell", "ls"), ("shell", "rm -f $(cat list)"), ("shell", "cat list")]),
        ("echo a > out.txt", [("shell", "echo a"), ("edit", "out.txt")]),
        ("cd sub && echo a > out.txt", [("shell", "echo a"), ("edit", "sub/out.txt")]),
        ("echo a >> link/out.txt", [("shell", "echo a"), ("edit", "sub/out.txt")]),
        ("sort < .env", [("shell", "sort"), ("read", ".env")]),
        ("sort < /etc/passwd", [("shell", "sort")]),
        ("echo a > /etc/cron.d/x", [("shell", "echo a"), ("external_directory", "/etc/cron.d")]),
        ("echo a > ../x", [("shell", "echo a"), ("external_directory", "..")]),
        ("echo a > ~/x", [("shell", "echo a"), ("external_directory", "~")]),
        ("echo a > /tmp/../etc/x", [("shell", "echo a"), ("external_directory", "/etc")]),
        ("make > /tmp/log 2> /dev/null", [("shell", "make")]),
        ("cd /usr/share && ls", [("shell", "ls"), ("external_directory", "/usr/share")]),
        ("cd ~ && ls", [("shell", "ls"), ("external_directory", "~")]),
        ("cd /tmp && ls", [("shell", "ls")]),
        ("cd sub", [("shell", "cd sub")]),
        ("# nothing", [("shell", "# nothing")]),
    ],
)
def test_a_line_needs_each_command_and_each_file_it_writes(
    scope: LocalWorkspace, script: str, needs: list[tuple[str, str]]
) -> None:
    assert found(scope, script) == needs


def test_paths_start_in_the_folder_it_runs_in(scope: LocalWorkspace) -> None:
    assert found(scope, "echo a > x; cd deeper", "sub") == [("shell", "echo a"), ("edit", "sub/x")]
    with pytest.raises(OutsideWorkspace):
        found(scope, "ls", "/etc")


def test_what_cannot_be_read_is_asked_whatever_rules_allow(scope: LocalWorkspace) -> None:
    args = Args(command=["bash", "-lc", "if ["])

    [need] = needs_of(args.command, ".", scope, args)

    assert (need.pattern, need.is_unclear) == ("if [", True)


def test_what_only_looks_like_a_shell_is_a_command_itself(scope: LocalWorkspace) -> None:
    args = Args(command=["./bash", "-lc", "ls"])

    assert Need("shell", "./bash -lc ls") in needs_of(args.command, ".", scope, args)
    assert effect_of(args.command, args) is Effect.WRITE


def test_nothing_is_written_into_the_insides_of_git(scope: LocalWorkspace) -> None:
    with pytest.raises(PermissionDenied, match="belongs to git"):
        found(scope, "echo a > .git/hooks/pre-commit")


def test_without_walls_every_command_and_every_file_is_asked(scope: LocalWorkspace) -> None:
    needs = escalated(scope, "git push && rm x > /etc/y", "git", "push")

    assert needs == [Need("escalate", "git push"), Need("escalate", "rm x"), Need("escalate", "> /etc/y")]
    assert [need.always for need in needs] == ["git push *", None, None]
    assert escalated(scope, "cd sub") == [Need("escalate", "cd sub")]


def test_an_always_of_a_command_with_a_star_means_this_command(scope: LocalWorkspace) -> None:
    [need] = escalated(scope, "rm '*'.o")

    rule = to_rule({"permission": "escalate", "pattern": need.always or need.pattern, "action": "allow"})

    assert isinstance(rule, Rule)
    assert rule.covers(need)
    assert not rule.covers(Need("escalate", "rm -rf /home/me.o"))


@pytest.mark.parametrize(
    ("script", "effect"),
    [
        ("ls -l | wc -l", Effect.READ),
        ("git status && cat a", Effect.READ),
        ("ls > out", Effect.WRITE),
        ("rm a", Effect.WRITE),
        ("$X", Effect.WRITE),
        (f"apply_patch '{PATCH}'", Effect.WRITE),
    ],
)
def test_only_known_safe_commands_read(script: str, effect: Effect) -> None:
    args = Args(command=["bash", "-lc", script])

    assert effect_of(args.command, args) is effect


def test_without_walls_nothing_only_reads() -> None:
    args = Args(command=["ls"], sandbox_permissions="require_escalated", justification="May I?")

    assert effect_of(args.command, args) is Effect.WRITE


@pytest.mark.parametrize(
    ("argv", "workdir", "path"),
    [
        (["apply_patch", PATCH], ".", "a"),
        (["apply_patch", PATCH], "sub", "sub/a"),
        (["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}EOF"], ".", "a"),
        (["bash", "-lc", f"cd sub && apply_patch <<'EOF'\n{PATCH}EOF"], ".", "sub/a"),
        (["bash", "-lc", f"cd deep && apply_patch <<'EOF'\n{PATCH}EOF"], "sub", "sub/deep/a"),
    ],
)
def test_a_line_that_is_a_patch_is_one_from_where_it_runs(
    scope: LocalWorkspace, argv: list[str], workdir: str, path: str
) -> None:
    args = Args(command=argv)

    assert patch_of(argv, workdir) == PATCH.replace("File: a", f"File: {path}")
    assert needs_of(argv, workdir, scope, args) == [Need("shell", "apply_patch")]


def test_other_lines_are_no_patches() -> None:
    assert patch_of(["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}EOF\nls"], ".") is None
    assert patch_of(["ls"], ".") is None


@pytest.mark.parametrize(
    ("line", "title"), [("x" * 100, "x" * 79 + "…"), ("x" * 80, "x" * 80), ("a\nb", "a…"), (" a ", "a"), ("", "")]
)
def test_a_title_is_the_beginning_of_the_line(line: str, title: str) -> None:
    assert title_of(line) == title


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["bash", "-lc", "ls"], "ls"),
        (["/bin/sh", "-c", "ls"], "ls"),
        (["./bash", "-c", "ls"], None),
        (["/ws/bash", "-c", "ls"], None),
        ([], None),
        (["bash", "ls"], None),
        (["python", "-c", "ls"], None),
        (["bash", "-c", "ls", "x"], None),
    ],
)
def test_a_script_is_found_behind_a_shell(argv: list[str], script: str | None) -> None:
    assert script_of(argv) == script
