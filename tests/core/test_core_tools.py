from typing import Any

import pytest
from pydantic import BaseModel, Field

from app.core.errors import InvalidArgs
from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, Tool, typed


class Place(BaseModel, extra="forbid"):
    line: int
    column: int = 0


class Args(BaseModel, extra="forbid"):
    path: str = Field(description="Where to look.")
    limit: int = Field(default=10, ge=1)
    places: list[Place] = []


class NoArgs(BaseModel, extra="forbid"):
    pass


def needs(args: BaseModel, scope: PathScope) -> list[Need]:
    return []


async def run(args: BaseModel, ctx: Context) -> Result:
    return Result()


def effect_by_limit(args: Args) -> Effect:
    return Effect.WRITE if args.limit > 10 else Effect.READ


TOY = typed(Args, name="toy_tool", description="A toy.", effect=effect_by_limit, needs=needs, run=run)
IDLE = typed(NoArgs, name="idle", description="Does nothing.", effect=Effect.READ, needs=needs, run=run, lane=Lane.NONE)

MISTAKES: list[tuple[Any, list[str], str]] = [
    ({}, ["path"], "`path` is required"),
    ({"path": "a", "colour": 1}, ["colour"], "`colour` is not a parameter of this tool, leave it out"),
    ({"path": 7}, ["path"], "`path`: input should be a valid string (got 7)"),
    (
        {"path": "a", "limit": "many"},
        ["limit"],
        "`limit`: input should be a valid integer, unable to parse string as an integer (got 'many')",
    ),
    ({"path": "a", "limit": 0}, ["limit"], "`limit`: input should be greater than or equal to 1 (got 0)"),
    ({"path": "a", "places": [{"line": 1}, {}]}, ["places.1.line"], "`places.1.line` is required"),
    (
        {"limit": 0, "x": 1},
        ["path", "limit", "x"],
        "`path` is required; `limit`: input should be greater than or equal to 1 (got 0); "
        "`x` is not a parameter of this tool, leave it out",
    ),
    (
        {"path": "a", "limit": "y" * 200},
        ["limit"],
        "`limit`: input should be a valid integer, unable to parse string as an integer (got '" + "y" * 76 + "...)",
    ),
]


@pytest.mark.parametrize(("raw", "fields", "sentence"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_in_the_arguments_is_told_in_words_a_model_can_act_on(
    raw: Any, fields: list[str], sentence: str
) -> None:
    with pytest.raises(InvalidArgs) as caught:
        TOY.parse(raw)

    assert caught.value.as_dict() == {
        "code": "InvalidArgs",
        "message": f"toy_tool cannot take these arguments: {sentence}. It takes: path, limit, places.",
        "retryable": False,
        "details": {"fields": fields},
    }


@pytest.mark.parametrize("raw", [None, [], "text", 7])
def test_arguments_that_are_no_object_are_refused(raw: Any) -> None:
    with pytest.raises(InvalidArgs, match=r"`arguments`: .* \(got .*\)\. It takes: path, limit, places\.$"):
        TOY.parse(raw)


def test_a_tool_without_parameters_says_that_it_takes_nothing() -> None:
    with pytest.raises(InvalidArgs, match=r"`a` is not a parameter of this tool, leave it out\. It takes: nothing\.$"):
        IDLE.parse({"a": 1})


def test_numbers_sent_as_strings_are_coerced_at_every_depth() -> None:
    parsed = TOY.parse({"path": "a", "limit": "5", "places": [{"line": "1", "column": "2"}]})

    assert parsed == Args(path="a", limit=5, places=[Place(line=1, column=2)])


def test_the_schema_is_the_models_without_its_python_name() -> None:
    assert IDLE.schema == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert TOY.schema["properties"]["path"] == {"description": "Where to look.", "title": "Path", "type": "string"}
    assert (TOY.schema["required"], "title" in TOY.schema) == (["path"], False)


def test_a_tool_shows_itself_and_is_named_in_plain_words() -> None:
    assert IDLE.view() == {
        "name": "idle",
        "title": "Idle",
        "description": "Does nothing.",
        "parameters": IDLE.schema,
        "output_schema": None,
        "takes": "arguments",
        "grammar": None,
        "effect": "read",
        "lane": "none",
        "timeout": 120.0,
        "source": "builtin",
        "server": None,
        "aliases": [],
        "annotations": {},
    }
    assert TOY.title == "Toy tool"


def test_an_effect_that_depends_on_the_arguments_is_shown_as_the_stricter_one() -> None:
    assert [TOY.effect_of(Args(path="a", limit=n)) for n in (1, 11)] == [Effect.READ, Effect.WRITE]
    assert TOY.view()["effect"] == "write"
    assert IDLE.effect_of(NoArgs()) is Effect.READ


def test_a_tool_is_a_value_that_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TOY.name = "other"  # type: ignore[misc]
    assert isinstance(TOY, Tool)
