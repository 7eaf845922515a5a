"""The alias table: every alias speaks a known dialect, and keeps its own rules."""

from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletionToolUnionParam

from app.core.runs import Media, ModelCall, Reply, Text
from app.providers.dialects import Choice, ExportOptions, Supports
from app.providers.openai_chat import dialect
from app.providers.registry import ALIASES, ProviderAlias, replace_unsupported_media
from app.providers.tool_limits import wire_name
from tests.providers.chat_cases import FREE, OFFER, QUIET
from tests.providers.neutral import PIXEL
from tests.providers.typed_dicts import require

DIALECTS = {
    *("openai-chat", "openai-responses", "anthropic", "gemini", "gemini-openapi", "gemini-interactions"),
    *("bedrock", "mistral", "ollama"),
    *("cohere", "text", "text-xml", "mcp"),
}
CHATS = {name: alias for name, alias in ALIASES.items() if alias.dialect == "openai-chat"}
ODD_NAMES = ("ls", "a.b", "get-weather", "_x", "9lives", "x" * 80, "ä", "get_weather")
MODES: tuple[Any, ...] = ("auto", "none", "required", "tool")


def test_the_providers_are_all_there() -> None:
    assert set(ALIASES) == {
        *("openrouter", "moonshot", "minimax", "minimax-anthropic", "zai", "xai", "copilot", "github-models"),
        *("deepseek", "vllm", "groq", "stackspot"),
    }


def test_every_alias_speaks_a_known_dialect(subtests: pytest.Subtests) -> None:
    cases: list[ProviderAlias] = list(ALIASES.values())
    for alias in cases:
        with subtests.test(alias=alias):
            assert alias.dialect in DIALECTS
            assert alias.supports.native_tools is (alias.dialect not in ("text", "text-xml"))


def test_what_an_alias_says_of_strict_is_what_it_does(subtests: pytest.Subtests) -> None:
    cases: list[ProviderAlias] = list(ALIASES.values())
    for alias in cases:
        with subtests.test(alias=alias):
            assert alias.supports.strict is (alias.quirks.strict != "never")
            assert alias.supports.freeform is alias.quirks.takes_freeform


def test_every_name_is_made_one_that_the_alias_takes(subtests: pytest.Subtests) -> None:
    cases: list[ProviderAlias] = list(ALIASES.values())
    for alias in cases:
        with subtests.test(alias=alias):
            rule = alias.quirks.names
            names = [wire_name(name, rule) for name in ODD_NAMES]

            assert all(rule.pattern.fullmatch(name) and len(name) <= rule.max_length <= 64 for name in names)
            assert len(set(names)) == len(ODD_NAMES)


def test_an_export_keeps_the_rules_of_its_alias(subtests: pytest.Subtests) -> None:
    stricts: list[Any] = ["auto", "on", "off"]
    aliass: list[ProviderAlias] = list(CHATS.values())
    for strict in stricts:
        for alias in aliass:
            with subtests.test(strict=strict, alias=alias):
                offers = [replace(OFFER, name=name, description="x" * 2000) for name in ODD_NAMES]
                offers += [FREE, *(replace(QUIET, name=f"tool_{number}") for number in range(150))]
                options = ExportOptions(strict=strict, model="gpt-5", quirks=alias.quirks)

                made = dialect.export_tools(offers, options)

                require(list[ChatCompletionToolUnionParam], made.tools)
                functions = [tool["function"] for tool in made.tools]
                assert len(functions) == min(len(offers), alias.quirks.max_tools or len(offers))
                assert all(alias.quirks.names.pattern.fullmatch(one["name"]) for one in functions)
                assert max(len(one["description"]) for one in functions) == (alias.quirks.max_description or 2000)
                expected = {"never": None, "false": False, "on_request": None}[alias.quirks.strict]
                if strict == "on" and alias.quirks.strict != "never":
                    expected = True
                assert {one.get("strict") for one in functions} == {expected}
                assert all(("strict" in one) is (expected is not None) for one in functions)


def test_a_choice_says_only_what_the_alias_takes(subtests: pytest.Subtests) -> None:
    aliass: list[ProviderAlias] = list(CHATS.values())
    for mode in MODES:
        for alias in aliass:
            with subtests.test(mode=mode, alias=alias):
                tools = dialect.export_tools([OFFER, QUIET], ExportOptions(quirks=alias.quirks)).tools
                choice = Choice(mode=mode, name="get_weather", allowed=("get_weather",), parallel=False)

                request = dialect.fill_request(tools, choice, alias.quirks, [])

                said = request.get("tool_choice")
                assert said is None or ("tool" if isinstance(said, dict) else said) in alias.quirks.modes
                assert not isinstance(said, dict) or said["type"] == "function"
                assert ("parallel_tool_calls" in request) is (alias.quirks.has_parallel_choice and "tools" in request)


def test_moonshot_is_told_that_tools_are_not_strict_and_takes_no_short_names() -> None:
    options = ExportOptions(quirks=ALIASES["moonshot"].quirks)

    functions = [tool["function"] for tool in dialect.export_tools([replace(OFFER, name="ls"), QUIET], options).tools]

    assert [one["strict"] for one in functions] == [False, False]
    assert len(functions[0]["name"]) >= 3
    assert functions[1]["name"] == "list_sessions"


def test_xai_is_not_told_that_objects_are_closed() -> None:
    offer = replace(OFFER, schema=OFFER.schema | {"additionalProperties": False})

    tools = dialect.export_tools([offer], ExportOptions(quirks=ALIASES["xai"].quirks)).tools

    assert tools[0]["function"]["parameters"] == OFFER.schema


def test_a_placeholder_stands_for_what_a_provider_would_refuse() -> None:
    png, pdf = Media(mime="image/png", data=PIXEL), Media(mime="application/pdf", data=PIXEL, name="a.pdf")
    reply = Reply(call=ModelCall(id="a", name="x"), parts=(Text("see"), png, pdf))

    seen = {
        images: replace_unsupported_media([reply], Supports(images=images, files=not images))[0].parts
        for images in (True, False)
    }

    assert seen == {
        True: (Text("see"), png, Text("[file a.pdf (application/pdf)]")),
        False: (Text("see"), Text("[image (image/png)]"), pdf),
    }
