"""Tools and choices as the Responses dialect says them."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from openai.types.responses import tool_choice_allowed_param
from openai.types.responses.response_create_params import ToolChoice

from app.core.runs import ToolOffer
from app.providers.dialects import Choice, Quirks, Wire
from app.providers.responses.dialect import dialect
from tests.providers.neutral import WEATHER
from tests.providers.responses import exported, line, note, patching, sessions, weather, words
from tests.providers.typed_dicts import require


def filled(tools: list[Wire], choice: Choice, quirks: Quirks = dialect.quirks) -> tuple[Wire, list[str]]:
    warnings: list[str] = []
    return dialect.fill_request(tools, choice, quirks, warnings), warnings


def test_a_function_always_says_whether_it_is_strict() -> None:
    [tool] = exported(weather).tools

    assert tool == {
        "type": "function",
        "name": "get_weather",
        "description": "Current weather for a place.",
        "parameters": WEATHER,
        "strict": False,
    }


@pytest.mark.parametrize("strictness", ["on", "auto"])
def test_a_strict_function_has_its_rewritten_schema(strictness: str) -> None:
    before = copy.deepcopy(WEATHER)

    made = exported(weather, strict=strictness)

    assert made.warnings == []
    assert made.tools[0]["strict"] is True
    assert made.tools[0]["parameters"]["required"] == ["location", "unit"]
    assert made.tools[0]["parameters"]["additionalProperties"] is False
    assert before == WEATHER


def test_a_schema_that_cannot_be_strict_stays_as_it_is_with_a_warning() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}

    made = exported(ToolOffer(name="tags", description="", schema=schema), weather, strict="auto")

    assert [tool["strict"] for tool in made.tools] == [False, True]
    assert made.tools[0]["parameters"] == schema
    [warning] = made.warnings
    assert warning.startswith("tags: not strict: ")


@pytest.mark.parametrize(
    ("can", "asked", "is_strict", "warnings"),
    [
        ("on_request", "auto", False, 0),
        ("on_request", "on", True, 0),
        ("false", "auto", False, 0),
        ("false", "on", False, 1),
        ("never", "on", False, 1),
        ("full", "off", False, 0),
    ],
)
def test_a_relative_is_strict_as_far_as_it_can_be(can: Any, asked: str, is_strict: bool, warnings: int) -> None:
    made = exported(weather, sessions, strict=asked, quirks=replace(dialect.quirks, strict=can))

    assert [tool["strict"] for tool in made.tools] == [is_strict] * 2
    assert len(made.warnings) == warnings


def test_a_tool_that_takes_a_text_is_free_form_for_models_that_know_such() -> None:
    made = exported(patching, note, model="openai/gpt-5.2")

    assert made.tools == [
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Change files by a patch.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "custom", "name": "note", "description": "Keep a note.", "format": {"type": "text"}},
    ]


@pytest.mark.parametrize(("model", "knows"), [("gpt-4.1", True), (None, True), ("gpt-5.2", False)])
def test_elsewhere_it_is_a_function_that_explains_its_one_text(model: str | None, knows: bool) -> None:
    made = exported(patching, note, model=model, quirks=replace(dialect.quirks, takes_freeform=knows))

    assert [tool["type"] for tool in made.tools] == ["function", "function"]
    assert [list(tool["parameters"]["properties"]) for tool in made.tools] == [["input"], ["input"]]
    assert "`input`" in made.tools[0]["description"]
    assert "start: /.+/" in made.tools[0]["description"]
    assert made.tools[1]["description"] == "Keep a note.\n\nGive the whole text as the string `input`."


def test_the_providers_own_tools_stand_for_ours_once() -> None:
    made = exported(patching, weather, words, line, is_native=True, model="gpt-5.2", strict="off")

    assert [tool["type"] for tool in made.tools] == ["apply_patch", "function", "shell"]
    assert made.tools[2] == {"type": "shell", "environment": {"type": "local"}}


def test_older_models_know_the_shell_in_its_first_form() -> None:
    assert exported(words, line, is_native=True, model="openai/codex-mini-latest").tools == [{"type": "local_shell"}]


def test_without_being_asked_for_they_are_ours() -> None:
    assert [tool["type"] for tool in exported(line, patching).tools] == ["function", "function"]


def test_only_what_is_deferred_says_so_and_the_search_comes_last() -> None:
    made = exported(weather, patching, sessions, defers=lambda name: name != "list_sessions", model="gpt-5.4")

    assert [tool.get("defer_loading") for tool in made.tools] == [True, True, None, None]
    assert made.tools[-1] == {"type": "tool_search"}


def test_where_the_provider_searches_our_own_search_is_left_out() -> None:
    made = exported(weather, replace(weather, name="tool_search"), defers=lambda name: True)

    assert [tool.get("name") for tool in made.tools] == ["get_weather", None]
    assert made.tools[-1] == {"type": "tool_search"}
    [warning] = [one for one in made.warnings if "tool_search" in one]
    assert "not exported" in warning


def test_where_nothing_is_deferred_nothing_is_searched() -> None:
    made = exported(weather, defers=lambda name: False)

    assert [tool["type"] for tool in made.tools] == ["function"]


def test_a_namespace_has_ours_and_not_the_providers_own() -> None:
    made = exported(line, weather, patching, sessions, is_native=True, namespace=("box", "Workspace tools"))

    assert [tool["type"] for tool in made.tools] == ["shell", "namespace", "apply_patch"]
    assert [tool["name"] for tool in made.tools[1]["tools"]] == ["get_weather", "list_sessions"]


def many(count: int) -> list[ToolOffer]:
    return [replace(weather, name=f"tool_{number}") for number in range(count)]


def test_tools_beyond_the_limit_are_left_out_by_name() -> None:
    full, over = exported(*many(128)), exported(*many(130))

    assert (len(full.tools), full.warnings) == (128, [])
    assert len(over.tools) == 128
    [warning] = over.warnings
    assert "128 tools" in warning
    assert "tool_128, tool_129" in warning


def test_the_search_takes_a_place_of_its_own() -> None:
    made = exported(*many(128), defers=lambda name: True)

    assert (len(made.tools), made.tools[-1]) == (128, {"type": "tool_search"})
    assert "tool_127" in made.warnings[0]


def test_a_description_that_is_too_long_is_cut_with_a_warning() -> None:
    made = exported(weather, quirks=replace(dialect.quirks, max_description=10))

    assert made.tools[0]["description"] == "Current w…"
    assert made.warnings == ["get_weather: the description was cut to 10 characters, this provider's limit."]


def test_a_name_that_is_not_taken_is_changed_with_a_warning() -> None:
    made = exported(replace(weather, name="mcp/weather.get"))

    [warning] = made.warnings
    assert made.tools[0]["name"].startswith("mcp_weather_get_")
    assert made.tools[0]["name"] in warning


def test_offers_are_not_shared_with_what_is_exported() -> None:
    made = exported(weather)
    made.tools[0]["parameters"]["properties"].clear()

    assert list(WEATHER["properties"]) == ["location", "unit"]


def test_a_choice_is_said_flat_by_what_the_tool_is_offered_as(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Choice, Any]] = [
        (Choice(), None),
        (Choice(mode="auto"), "auto"),
        (Choice(mode="none"), "none"),
        (Choice(mode="none", allowed=("get_weather",)), "none"),
        (Choice(mode="required"), "required"),
        (Choice(mode="tool", name="get_weather"), {"type": "function", "name": "get_weather"}),
        (Choice(mode="tool", name="note"), {"type": "custom", "name": "note"}),
        (Choice(mode="tool", name="apply_patch"), {"type": "apply_patch"}),
        (Choice(mode="tool", name="shell_command"), {"type": "shell"}),
        (
            Choice(mode="required", allowed=("get_weather", "note", "shell", "shell_command")),
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "function", "name": "get_weather"},
                    {"type": "custom", "name": "note"},
                    {"type": "shell"},
                ],
            },
        ),
        (
            Choice(allowed=("note",)),
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "note"}]},
        ),
    ]
    for choice, said in cases:
        with subtests.test(choice=choice, said=said):
            tools = exported(weather, note, patching, line, words, is_native=True, model="gpt-5.2").tools

            request, warnings = filled(tools, choice)

            assert request == {"tools": tools} | ({} if said is None else {"tool_choice": said})
            assert warnings == []
            if said is not None:
                require(ToolChoice, said)
            if isinstance(said, dict) and said["type"] == "allowed_tools":
                require(tool_choice_allowed_param.ToolChoiceAllowedParam, said)


def test_a_tool_in_a_namespace_can_be_chosen_by_its_name_on_the_wire() -> None:
    tools = exported(replace(weather, name="a.b"), namespace=("box", "")).tools

    request, warnings = filled(tools, Choice(mode="tool", name="a.b"))

    assert request["tool_choice"] == {"type": "function", "name": tools[0]["tools"][0]["name"]}
    assert warnings == []


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(mode="tool"), None),
        (Choice(mode="tool", name="gone"), {"type": "function", "name": "gone"}),
        (Choice(mode="tool", name="shell"), "required"),
    ],
)
def test_what_cannot_be_said_or_may_be_refused_is_a_warning(choice: Choice, said: Any) -> None:
    tools = exported(weather, words, is_native=True, model="codex-mini-latest").tools

    request, warnings = filled(tools, choice)

    assert request.get("tool_choice") == said
    assert len(warnings) == 1


@pytest.mark.parametrize("parallel", [True, False])
def test_whether_several_calls_may_come_at_once_is_said_when_it_is_asked_for(parallel: bool) -> None:
    request, warnings = filled([], Choice(parallel=parallel))

    assert (request, warnings) == ({"tools": [], "parallel_tool_calls": parallel}, [])


def test_a_relative_that_cannot_say_a_choice_gets_a_warning() -> None:
    quirks = replace(dialect.quirks, modes=frozenset({"auto"}), has_parallel_choice=False)

    request, warnings = filled([], Choice(mode="required", parallel=False), quirks)

    assert (request, len(warnings)) == ({"tools": []}, 2)
