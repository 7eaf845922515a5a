import json
from typing import Any

import pytest

from app.core.errors import InvalidArgs
from app.core.results import Result
from app.core.tools import Context, Effect
from app.tools.request_user_input import tool


def question(**more: Any) -> dict[str, Any]:
    return {"id": "colour", "header": "Colour", "question": "Which colour?"} | more


def options(*labels: str) -> list[dict[str, Any]]:
    return [{"label": label} for label in labels]


def shown(*questions: dict[str, Any]) -> list[dict[str, Any]]:
    assert tool.asks is not None
    return tool.asks(tool.parse({"questions": list(questions)}))


def test_people_see_the_options_and_that_they_may_say_something_else() -> None:
    given = question(options=[{"label": "Red", "description": "As fire."}, {"label": "Blue"}])

    assert shown(given) == [
        {
            "id": "colour",
            "header": "Colour",
            "question": "Which colour?",
            "options": [
                {"label": "Red", "description": "As fire.", "is_other": False},
                {"label": "Blue", "description": None, "is_other": False},
                {"label": "Other", "description": "Say it in your own words.", "is_other": True},
            ],
        }
    ]


def test_a_question_without_options_asks_for_words() -> None:
    assert shown(question())[0]["options"] == []


async def test_the_model_reads_the_answers_as_json(ctx: Context) -> None:
    answer = {"colour": "Blau, natürlich", "size": ["S", "M"]}
    ctx.extra["answer"] = answer

    args = tool.parse({"questions": [question(), question(id="size", header="Size")]})
    result = await tool.run(args, ctx)

    assert result == Result(output=result.output, title="Colour, Size", structured={"answers": answer})
    assert json.loads(result.output) == {"answers": answer}
    assert "natürlich" in result.output


def test_it_asks_one_to_three_questions_and_up_to_five_options() -> None:
    three = [question(id=f"q{number}", options=options("a", "b", "c", "d", "e")) for number in range(3)]

    assert [len(one["options"]) for one in shown(*three)] == [6, 6, 6]


@pytest.mark.parametrize(
    ("questions", "sentence"),
    [
        ([], "`questions`: list should have at least 1 item"),
        ([question(id=f"q{number}") for number in range(4)], "`questions`: list should have at most 3 items"),
        ([question(), question()], "`questions`: each question needs an id of its own"),
        ([question(id="Favourite Colour")], "`questions.0.id`: string should match pattern"),
        ([question(header="h" * 33)], "`questions.0.header`: string should have at most 32 characters"),
        ([question(question="")], "`questions.0.question`: string should have at least 1 character"),
        ([question(options=options("Red"))], "give at least two options that differ, or none at all"),
        ([question(options=options("Red", "red "))], "give at least two options that differ, or none at all"),
        ([question(options=options("Red", "other"))], "leave the option Other out, it is always added"),
        ([question(options=options(*"abcdef"))], "list should have at most 5 items"),
        ([question(choices=[])], "`questions.0.choices` is not a parameter of this tool"),
    ],
)
def test_a_mistake_is_said_so_that_a_model_can_mend_it(questions: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(InvalidArgs) as caught:
        tool.parse({"questions": questions})

    assert sentence in caught.value.message


def test_asking_reads_waits_for_nobody_and_needs_no_permission(ctx: Context) -> None:
    args = tool.parse({"questions": [question()]})

    assert (tool.effect, tool.lane, tool.needs(args, ctx.workspace)) == (Effect.READ, "none", [])
