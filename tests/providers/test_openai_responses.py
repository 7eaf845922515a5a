"""OpenAI Responses: the recorded cases."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from app.core.runs import ToolOffer
from app.providers.responses.dialect import dialect
from tests.providers.neutral import offers_of, replies_of
from tests.providers.responses import exported, nobody, written

CASES = [
    case
    for case in json.loads((Path(__file__).parent.parent / "scenarios" / "providers.json").read_text())["cases"]
    if case["format"] == "openai-responses"
]


def calls_of(kind: str) -> list[dict[str, Any]]:
    return [case for case in CASES if case["kind"] == kind]


@pytest.mark.parametrize("case", calls_of("definition"), ids=lambda case: case["id"])
def test_a_recorded_definition_is_written(case: dict[str, Any]) -> None:
    given, asked = case["input"], case["input"].get("options", {})
    names = [ToolOffer(name=name, description="", schema={}) for name in given.get("builtins", [])]
    namespace = asked.get("namespace")

    made = exported(
        *names,
        *offers_of(given.get("tools", [])),
        strict="on" if asked.get("strict") else "off",
        is_native=bool(names),
        model=asked.get("model", "gpt-5.2"),
        defers=(lambda name: True) if asked.get("defer") else None,
        namespace=namespace and (namespace["name"], namespace["description"]),
    )

    assert (made.tools, made.warnings) == (case["expected"], [])


@pytest.mark.parametrize("case", calls_of("calls"), ids=lambda case: case["id"])
def test_a_recorded_call_is_read(case: dict[str, Any]) -> None:
    before = copy.deepcopy(case["input"])

    reading = dialect.read_calls(case["input"], nobody)

    assert [call.view() for call in reading.calls] == case["expected"]
    assert case["input"] == before


@pytest.mark.parametrize("case", calls_of("results"), ids=lambda case: case["id"])
def test_recorded_results_are_written(case: dict[str, Any]) -> None:
    assert written(*replies_of(case["input"]["results"])) == case["expected"]


def test_every_kind_of_recorded_case_is_there() -> None:
    assert {case["kind"] for case in CASES} == {"definition", "calls", "results"}


def test_the_dialect_says_what_it_can() -> None:
    assert (dialect.name, dialect.strips_nulls, dialect.numbers_calls) == ("openai-responses", True, False)
    assert dialect.quirks.max_tools == 128
    assert dialect.supports.strict
    assert dialect.supports.images
    assert dialect.supports.files
