"""Hooks as words: where one is asked, what its failure means, how a function becomes one."""

import pytest

from app.core.hooks import Hook, OnFailure, Point, hook, marked
from tests.support.toy_tools import ToyHook


def at(*points: Point, tools: tuple[str, ...] = ("*",), on_failure: OnFailure | None = None) -> Hook:
    return Hook(name="h", points=frozenset(points), run=ToyHook("h").run, tools=tools, on_failure=on_failure)


@pytest.mark.parametrize(
    ("tools", "tool", "concerns"),
    [
        (("*",), "shell", True),
        (("shell",), "shell", True),
        (("shell",), "shell_command", False),
        (("mcp__*", "read_?ile"), "read_file", True),
        (("mcp__*",), "mcp__git__log", True),
        ((), "shell", False),
    ],
)
def test_a_hook_is_about_the_tools_its_patterns_match(tools: tuple[str, ...], tool: str, concerns: bool) -> None:
    one = at(Point.BEFORE, tools=tools)

    assert one.concerns(Point.BEFORE, tool) is concerns
    assert one.concerns(Point.AFTER, tool) is False


@pytest.mark.parametrize("point", Point)
def test_a_failure_is_a_no_where_nothing_has_happened_yet(point: Point) -> None:
    assert at(point).blocks(point) is (point in {Point.BEFORE, Point.ASK, Point.SHELL_ENV})
    assert at(point, on_failure="block").blocks(point) is True
    assert at(point, on_failure="continue").blocks(point) is False


def test_a_decorated_function_is_still_the_function_and_can_become_a_hook() -> None:
    @hook("tool.execute.before", "permission.ask", tools="shell*", timeout=5, on_failure="continue")
    def guard(about: dict[str, object]) -> dict[str, object]:
        return about

    making, run = marked(guard), ToyHook("h").run

    assert guard({"a": 1}) == {"a": 1}
    assert making is not None
    assert making(run=run) == Hook(
        name="guard",
        points=frozenset({Point.BEFORE, Point.ASK}),
        run=run,
        tools=("shell*",),
        timeout=5,
        on_failure="continue",
    )


def test_what_was_not_decorated_is_no_hook() -> None:
    assert marked(len) is None
    assert marked(3) is None


def test_a_point_that_does_not_exist_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"'tool\.execute\.during' is not a valid Point"):
        hook("tool.execute.during")
    with pytest.raises(ValueError, match="at least one point"):
        hook()
