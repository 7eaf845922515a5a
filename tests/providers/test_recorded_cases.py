"""Every recorded case of every provider, through the table of dialects: none is left out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.runs import ToolOffer
from app.providers.dialects import Dialect, ExportOptions
from app.providers.registry import find
from tests.providers.neutral import knowing, offers_of, replies_of

CASES = json.loads((Path(__file__).parent.parent / "scenarios" / "providers.json").read_text())["cases"]
SPOKEN = {
    "openai-chat-stream": "openai-chat",
    "anthropic-stream": "anthropic",
    "text-pythonic": "text",
    "text-mistral": "text",
    "text-hermes": "text",
}
READ_FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": ["integer", "null"]}},
    "required": ["path"],
}
NAMES = ("get_weather", "list_sessions", "read_file", "apply_patch")


def of(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


def dialect_of(case: dict[str, Any]) -> Dialect:
    dialect = find(SPOKEN.get(case["format"], case["format"]))
    assert dialect is not None, case["format"]
    return dialect


def known_tools(case: dict[str, Any]) -> list[ToolOffer]:
    if "tools" in case:
        return offers_of(case["tools"])
    schema = {"type": "object", "properties": {"location": {"type": "string"}}}
    return [ToolOffer(name=name, description="", schema=READ_FILE if name == "read_file" else schema) for name in NAMES]


def options_of(case: dict[str, Any], dialect: Dialect) -> tuple[list[ToolOffer], ExportOptions]:
    given = case["input"].get("options", {})
    offers = offers_of(case["input"].get("tools", []))
    for name in case["input"].get("builtins", []):
        offers.append(ToolOffer(name=name, description="", schema={"type": "object", "properties": {}}))
    namespace = given.get("namespace")
    options = ExportOptions(
        strict="on" if given.get("strict") else "off",
        is_native="builtins" in case["input"],
        cache="ephemeral" if given.get("cache") else None,
        defers=(lambda name: True) if given.get("defer") else None,
        namespace=(namespace["name"], namespace["description"]) if namespace else None,
        quirks=dialect.quirks,
    )
    return offers, options


def parsed(value: Any) -> Any:
    """Values whose strings of JSON are read: the order of keys does not count in them."""
    if isinstance(value, dict):
        return {name: parsed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [parsed(item) for item in value]
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


@pytest.mark.parametrize("case", of("definition"))
def test_a_recorded_definition_is_written_as_it_was(case: dict[str, Any]) -> None:
    dialect = dialect_of(case)
    offers, options = options_of(case, dialect)

    exported = dialect.export_tools(offers, replace(options, model=None))

    assert exported.tools == case["expected"]


@pytest.mark.parametrize("case", of("calls"))
def test_recorded_calls_are_read_as_they_were(case: dict[str, Any]) -> None:
    reading = dialect_of(case).read_calls(case["input"], knowing(*known_tools(case)))

    assert [call.view() for call in reading.calls] == case["expected"]


@pytest.mark.parametrize("case", of("results"))
def test_recorded_results_are_written_as_they_were(case: dict[str, Any]) -> None:
    written = dialect_of(case).write_results(replies_of(case["input"]["results"]))

    if case.get("match") != "structure":
        assert parsed(written) == parsed(case["expected"])
        return
    assert [one["role"] for one in written] == [one["role"] for one in case["expected"]]
    assert [sorted(one) for one in written] == [sorted(one) for one in case["expected"]]
    assert [len(parts(one)) for one in written] == [len(parts(one)) for one in case["expected"]]


def parts(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [content]


def test_every_recorded_case_is_of_a_kind_that_is_run() -> None:
    assert {case["kind"] for case in CASES} == {"definition", "calls", "results"}
    assert len(CASES) == 31
