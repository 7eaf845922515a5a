"""What may be typed into a program on a terminal, and what has to be allowed before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.rules import Need
from app.core.sandbox import Backend, Isolation, Network
from app.core.sessions import Profile
from app.core.terminals import Collected, Tell
from app.sandbox.files.workspace import LocalWorkspace
from app.text.bash.interactive import input_needs, may_be_shell


class ToyTerminal:
    """The `Terminal` port, as far as it is looked at."""

    id = 1234
    takes_input = True

    def __init__(self, command: str, typed: str = "", *, is_escalated: bool = False) -> None:
        self.command = command
        self.typed = typed
        self.isolation = Isolation(Backend.NONE, Profile.WORKSPACE_WRITE, Network.FULL, is_escalated=is_escalated)

    async def write(self, text: str) -> None: ...

    async def collect(self, seconds: float, tell: Tell | None = None) -> Collected:
        raise NotImplementedError

    async def end(self) -> None: ...


@pytest.fixture
def scope(tmp_path: Path) -> Iterator[LocalWorkspace]:
    scope = LocalWorkspace(tmp_path)
    yield scope
    scope.close()


def patterns(needs: list[Need]) -> list[str]:
    return [need.pattern for need in needs]


@pytest.mark.parametrize(
    ("typed", "chars", "wanted"),
    [
        ("", "rm -rf x\n", ["rm -rf x"]),
        ("", "ls; rm -rf x\r", ["ls", "rm -rf x"]),
        ("", "ls\r\nrm x\r\n", ["ls", "rm x"]),
        ("", "echo $(rm -rf x)\n", ["echo $(rm -rf x)", "rm -rf x"]),
        ("r", "m -rf x\n", ["rm -rf x"]),
        ("rm -rf", " x", ["rm -rf x"]),
        ("ech", "\x03rm x\n", ["echrm x", "rm x"]),
        ("r\x03", "m x\n", ["rm x", "m x"]),
        ("", "\n", []),
        ("rm x", "\x03", []),
        ("", "\x1a", []),
        ("", "\x04", []),
    ],
)
def test_what_is_typed_into_a_shell_needs_what_its_commands_need(
    scope: LocalWorkspace, typed: str, chars: str, wanted: list[str]
) -> None:
    needs = input_needs(ToyTerminal("bash -i", typed), chars, scope)

    assert patterns(needs) == wanted
    assert not any(need.is_unclear for need in needs)


@pytest.mark.parametrize(
    "chars", ["\x1b[A\n", "rn\x7fm x\n", "rm\x16\t-rf x\n", "ls\t", "echo 'half\n", "$X\n", "\x12rm\n", "a\x9bA\n"]
)
def test_what_cannot_be_read_as_commands_is_asked(scope: LocalWorkspace, chars: str) -> None:
    assert any(need.is_unclear for need in input_needs(ToyTerminal("bash -i"), chars, scope))


def test_a_file_that_a_typed_line_writes_is_a_need(scope: LocalWorkspace) -> None:
    needs = input_needs(ToyTerminal("bash"), "echo a > .env\n", scope)

    assert needs == [Need("shell", "echo a"), Need("edit", ".env")]


def test_what_is_typed_into_another_program_needs_that_program(scope: LocalWorkspace) -> None:
    assert input_needs(ToyTerminal("python3 -i"), "rm -rf x\n\t\x7f", scope) == [Need("shell", "python3 -i")]
    assert input_needs(ToyTerminal("python3 -i"), "\x03", scope) == []


@pytest.mark.parametrize("command", ["bash", "cat"])
def test_without_walls_everything_typed_is_asked_as_that(scope: LocalWorkspace, command: str) -> None:
    terminal = ToyTerminal(command, is_escalated=True)

    needs = input_needs(terminal, "date\n", scope) + input_needs(terminal, "da\x7f\n", scope)

    assert {need.permission for need in needs} == {"escalate"}


@pytest.mark.parametrize(
    "command",
    ["bash", "exec sh", "env A=b bash -i", "docker exec -it box /bin/bash", "ssh host", "sudo -s", "$SHELL", "echo '"],
)
def test_whatever_may_be_a_shell_is_taken_for_one(command: str) -> None:
    assert may_be_shell(command)


@pytest.mark.parametrize("command", ["python3", "cat", "vim a.py", "psql -h db", "npm init"])
def test_what_is_none_is_not(command: str) -> None:
    assert not may_be_shell(command)
