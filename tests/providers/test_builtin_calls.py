"""Which of our tools carry out what a model asked for, and how its commands ended."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.runs import CallSpec, CommandEnd, ModelCall, ToolOffer
from app.providers.builtin_calls import call_specs, command_end, limit_output, to_patch
from app.providers.dialects import COMMON, UNIVERSAL, NameRule
from app.providers.tool_limits import wire_name
from app.text.patch.lenient import read
from app.text.patch.parse import Add, Delete, Hunk, Operation, Update
from tests.providers.neutral import WEATHER, knowing

weather = ToolOffer(name="get_weather", description="", schema=WEATHER)
js = ToolOffer(name="js_repl", description="", schema={}, takes="input")
lines = ToolOffer(name="shell_command", description="", schema={})
bash = replace(lines, name="bash")
foreign = ToolOffer(name="mcp__git/log.all", description="", schema={})
known = knowing(weather, js, lines)


def sent(kind: Any, name: str = "", **more: Any) -> list[CallSpec]:
    return call_specs(ModelCall(id="c", name=name or kind, type=kind, **more), known)


def test_a_function_is_run_with_its_arguments() -> None:
    assert sent("function", "get_weather", arguments={"location": "Oslo"}) == [
        CallSpec(tool="get_weather", arguments={"location": "Oslo"})
    ]


def test_a_text_goes_to_a_tool_that_takes_texts_and_else_becomes_an_argument() -> None:
    assert sent("custom", "js_repl", input="1 + 1") == [CallSpec(tool="js_repl", input="1 + 1")]
    assert sent("custom", "get_weather", input="Oslo") == [CallSpec(tool="get_weather", arguments={"input": "Oslo"})]


def test_arguments_for_a_tool_that_takes_texts_stay_arguments() -> None:
    assert sent("function", "js_repl", arguments={"input": "1"}) == [CallSpec(tool="js_repl", arguments={"input": "1"})]


def test_a_name_that_nobody_knows_stays_as_it_is() -> None:
    assert sent("function", "nothing", arguments={}) == [CallSpec(tool="nothing", arguments={})]
    assert sent("custom", "nothing", input="x") == [CallSpec(tool="nothing", input="x")]


@pytest.mark.parametrize("rule", [COMMON, UNIVERSAL, NameRule(UNIVERSAL.pattern, max_length=128)])
def test_a_name_that_was_changed_for_the_wire_means_the_tool_it_was_made_of(rule: NameRule) -> None:
    wire = wire_name(foreign.name, rule)
    assert wire != foreign.name

    [errand] = call_specs(ModelCall(id="c", name=wire, arguments={}), {wire: foreign}.get)

    assert errand.tool == foreign.name


def test_an_alias_is_called_by_its_name_because_it_has_arguments_of_its_own() -> None:
    arguments = {"command": "ls", "timeout": 5, "description": "List"}

    [errand] = call_specs(ModelCall(id="c", name="bash", arguments=arguments), {"bash": bash}.get)

    assert errand == CallSpec(tool="bash", arguments=arguments)


@pytest.mark.parametrize("arguments", [{"restart": True}, {"restart": True, "command": None}])
def test_a_shell_that_shall_start_anew_says_that_each_command_does(arguments: dict[str, Any]) -> None:
    [errand] = call_specs(ModelCall(id="c", name="bash", arguments=arguments), {"bash": bash}.get)

    assert errand.tool == "shell_command"
    assert (errand.arguments or {})["command"].startswith("echo ")


@pytest.mark.parametrize(
    ("arguments", "offer"),
    [
        ({"restart": True, "command": "ls"}, bash),
        ({"restart": False}, bash),
        ({"restart": True}, replace(bash, schema={"properties": {"restart": {"type": "boolean"}}})),
    ],
)
def test_a_command_or_a_tool_of_somebodys_own_is_run_as_it_is(arguments: dict[str, Any], offer: ToolOffer) -> None:
    call = ModelCall(id="c", name="bash", arguments=arguments)

    assert call_specs(call, {"bash": offer}.get) == [CallSpec(tool="bash", arguments=arguments)]


def test_each_command_of_a_shell_is_an_errand() -> None:
    assert sent("shell", arguments={"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 9}) == [
        CallSpec(tool="shell_command", arguments={"command": "ls", "timeout_ms": 1000}),
        CallSpec(tool="shell_command", arguments={"command": "pwd", "timeout_ms": 1000}),
    ]


@pytest.mark.parametrize("time", [None, 0, -1, True, "1000"])
def test_a_time_that_is_none_is_left_out(time: Any) -> None:
    assert sent("shell", arguments={"commands": ["ls"], "timeout_ms": time}) == [
        CallSpec(tool="shell_command", arguments={"command": "ls"})
    ]


def test_a_local_shell_runs_words_in_their_folder_with_their_variables() -> None:
    action = {
        "type": "exec",
        "command": ["ls", "-l"],
        "env": {"A": "b c", "D": ""},
        "timeout_ms": 5,
        "user": None,
        "working_directory": "d",
    }

    assert sent("local_shell", arguments=action) == [
        CallSpec(
            tool="shell",
            arguments={"command": ["env", "A=b c", "D=", "ls", "-l"], "workdir": "d", "timeout_ms": 5},
        )
    ]
    assert sent("local_shell", arguments={"command": ["ls"], "env": {}}) == [
        CallSpec(tool="shell", arguments={"command": ["ls"]})
    ]


def test_a_computer_gets_its_actions() -> None:
    actions = {"actions": [{"type": "screenshot"}], "pending_safety_checks": [{"id": "s"}]}

    assert sent("computer", arguments=actions) == [CallSpec(tool="computer", arguments=actions)]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"query": "mail"}, {"query": "mail"}),
        ({"goal": "send mail", "limit": 3}, {"query": "send mail", "limit": 3}),
        ({"query": "mail", "max_results": 900}, {"query": "mail", "limit": 50}),
        ({"query": "mail", "top_k": 0}, {"query": "mail", "limit": 1}),
        ({"query": "mail", "limit": "many"}, {"query": "mail"}),
        ({"paths": ["box"]}, {"paths": ["box"]}),
    ],
)
def test_a_search_of_tools_is_ours(given: dict[str, Any], taken: dict[str, Any]) -> None:
    assert sent("tool_search", arguments=given) == [CallSpec(tool="tool_search", arguments=taken)]


def test_a_call_that_cannot_be_read_is_no_errand() -> None:
    assert sent("shell", arguments_error="The message ended.", raw_arguments="{") == []


def test_a_patch_of_the_provider_is_one_of_ours() -> None:
    assert sent("apply_patch", arguments={"type": "delete_file", "path": "a b.py"}) == [
        CallSpec(tool="apply_patch", input="*** Begin Patch\n*** Delete File: a b.py\n*** End Patch\n")
    ]


BODY = " one\n-two\n+2\n"
CHANGED = [Update(2, "a.py", None, (Hunk(3, (), (" one", "-two", "+2")),))]


@pytest.mark.parametrize(
    "diff",
    [
        f"@@\n{BODY}",
        f"@@\n{BODY}".removesuffix("\n"),
        f"@@\n{BODY}".replace("\n", "\r\n"),
        f"*** Begin Patch\n*** Update File: a.py\n@@\n{BODY}*** End Patch\n",
        f"\n*** Begin Patch\n*** Update File: a.py\n@@\n{BODY}*** End Patch\n\n",
        f"*** Update File: other.py\n@@\n{BODY}",
        f"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@ def f():\n{BODY}",
        f"@@ -1,2 +1,2 @@\n{BODY}\\ No newline at end of file\n",
    ],
)
def test_an_update_is_read_with_or_without_what_names_its_file(diff: str) -> None:
    assert read(to_patch({"type": "update_file", "path": "a.py", "diff": diff})) == CHANGED


@pytest.mark.parametrize(
    ("diff", "operation"),
    [
        (BODY, Update(2, "a.py", None, (Hunk(3, (), (" one", "-two", "+2")),))),
        (f"@@ def f():\n{BODY}", Update(2, "a.py", None, (Hunk(3, ("def f():",), (" one", "-two", "+2")),))),
        (
            f"*** Move to: b.py\n@@\n{BODY}*** End of File\n",
            Update(2, "a.py", "b.py", (Hunk(4, (), (" one", "-two", "+2"), is_at_end=True),)),
        ),
        ("@@\n-a\n+b\n\n", Update(2, "a.py", None, (Hunk(3, (), ("-a", "+b", " ")),))),
    ],
)
def test_what_an_update_says_besides_stays(diff: str, operation: Operation) -> None:
    assert read(to_patch({"type": "update_file", "path": "a.py", "diff": diff})) == [operation]


@pytest.mark.parametrize(
    ("diff", "content"),
    [
        ("+one\n+\n+two\n", ("one", "", "two")),
        ("+one\n\n+two", ("one", "", "two")),
        ("one\n\ntwo\n", ("one", "", "two")),
        ("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,1 @@\n+one\n", ("one",)),
        ("*** Begin Patch\n*** Add File: a.py\n+one\n*** End Patch", ("one",)),
        ("", ()),
    ],
)
def test_a_new_file_has_the_lines_of_its_diff(diff: str, content: tuple[str, ...]) -> None:
    assert read(to_patch({"type": "create_file", "path": "a.py", "diff": diff})) == [Add(2, "a.py", content)]


def test_a_file_is_deleted_by_its_path() -> None:
    assert read(to_patch({"type": "delete_file", "path": "d/a.py"})) == [Delete(2, "d/a.py")]


def result(stdout: str = "", stderr: str = "", **outcome: Any) -> dict[str, Any]:
    return {"output": "Exit code…", "structured": {"stdout": stdout, "stderr": stderr, "outcome": outcome}}


def error(code: str, message: str = "so it is") -> dict[str, Any]:
    return {"code": code, "message": message, "retryable": False}


@pytest.mark.parametrize(
    ("given", "failed", "end"),
    [
        (
            result("a\n", "b", type="exit", exit_code=0),
            None,
            CommandEnd(stdout="a\n", stderr="b", exit_code=0),
        ),
        (
            result("a", "b", type="exit", exit_code=3),
            error("ExitCode:3"),
            CommandEnd(stdout="a", stderr="b", exit_code=3),
        ),
        (result("a", type="timeout"), error("Timeout"), CommandEnd(stdout="a")),
        (None, error("Timeout"), CommandEnd()),
        (
            None,
            error("PermissionDenied"),
            CommandEnd(stderr="[ERROR:PermissionDenied] so it is", exit_code=1),
        ),
        (
            result("a", "b", type="exit", exit_code=137),
            error("ResourceLimit"),
            CommandEnd(stdout="a", stderr="b\n[ERROR:ResourceLimit] so it is", exit_code=137),
        ),
        (
            {"output": "merged", "structured": None, "metadata": {"exit_code": 0}},
            None,
            CommandEnd(stdout="merged", exit_code=0),
        ),
        ({"output": "merged"}, error("ExitCode:-1"), CommandEnd(stdout="merged", exit_code=-1)),
        ({"output": "merged"}, None, CommandEnd(stdout="merged", exit_code=0)),
    ],
)
def test_how_a_command_ended_is_in_the_record_of_its_call(given: Any, failed: Any, end: CommandEnd) -> None:
    assert command_end(given, failed) == end


def test_without_a_limit_or_within_it_nothing_is_cut() -> None:
    end = CommandEnd(stdout="a" * 50, stderr="b" * 50, exit_code=1)

    assert limit_output(end, None) is end
    assert limit_output(end, 100) is end


def test_both_ends_of_what_is_too_long_are_kept() -> None:
    end = limit_output(CommandEnd(stdout="a" * 500 + "z" * 500, stderr="b" * 20, exit_code=1), 200)

    assert (len(end.stdout) + len(end.stderr), end.stderr, end.exit_code) == (200, "b" * 20, 1)
    assert (end.stdout[0], end.stdout[-1]) == ("a", "z")
    assert "[the middle of these 1000 characters is left out]" in end.stdout


def test_where_not_even_a_note_fits_the_beginning_is_kept() -> None:
    assert limit_output(CommandEnd(stdout="abcdef", exit_code=0), 4) == CommandEnd(stdout="abcd", exit_code=0)


@given(st.text(max_size=300), st.text(max_size=300), st.integers(-5, 400))
def test_what_was_cut_fits_and_is_not_cut_again(stdout: str, stderr: str, most: int) -> None:
    end = limit_output(CommandEnd(stdout=stdout, stderr=stderr, exit_code=0), most)

    assert len(end.stdout) + len(end.stderr) <= max(most, 0)
    assert limit_output(end, most) == end
