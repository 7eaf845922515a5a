"""request_user_input: ask the person a few questions and wait for the answers."""

from typing import Any

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from app.core.ports import PathScope
from app.core.results import Result
from app.core.rules import Need
from app.core.tools import Context, Effect, Lane, typed
from app.core.util.json_codec import dumps

OTHER = "Other"
OWN_WORDS = {"label": OTHER, "description": "Say it in your own words.", "is_other": True}


class Option(BaseModel, extra="forbid"):
    """One answer to choose."""

    label: str = Field(min_length=1, max_length=100, description="The answer, in one to five words.")
    description: str | None = Field(default=None, max_length=500, description="What choosing it means.")


class Question(BaseModel, extra="forbid"):
    """One thing to ask."""

    id: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$", max_length=64, description="Names the answer, in snake_case; each once."
    )
    header: str = Field(min_length=1, max_length=32, description="What it is about, in a word or two.")
    question: str = Field(min_length=1, max_length=2000, description="The question, in one sentence.")
    options: list[Option] = Field(
        default=[],
        max_length=5,
        description="2 to 5 answers to choose from, the one you recommend first; none when only the person's own "
        "words will do. Leave out Other: it is always added.",
    )

    @field_validator("options")
    @classmethod
    def _are_a_choice(cls, options: list[Option]) -> list[Option]:
        labels = {option.label.strip().casefold() for option in options}
        if len(options) == 1 or len(labels) < len(options):
            raise PydanticCustomError("choice", "give at least two options that differ, or none at all")
        if OTHER.casefold() in labels:
            raise PydanticCustomError("other", "leave the option Other out, it is always added")
        return options


class Args(BaseModel, extra="forbid"):
    questions: list[Question] = Field(min_length=1, max_length=3, description="What to ask, all at once.")

    @field_validator("questions")
    @classmethod
    def _differ(cls, questions: list[Question]) -> list[Question]:
        if len({question.id for question in questions}) < len(questions):
            raise PydanticCustomError("unique", "each question needs an id of its own")
        return questions


def needs(args: Args, scope: PathScope) -> list[Need]:
    return []


def asks(args: Args) -> list[dict[str, Any]]:
    """The questions as people see them."""
    return [_shown(question) for question in args.questions]


def _shown(question: Question) -> dict[str, Any]:
    options = [option.model_dump() | {"is_other": False} for option in question.options]
    return question.model_dump() | {"options": [*options, OWN_WORDS] if options else []}


async def run(args: Args, ctx: Context) -> Result:
    answers = {"answers": ctx.extra["answer"]}
    title = ", ".join(question.header for question in args.questions)
    return Result(output=dumps(answers).decode(), title=title, structured=answers)


tool = typed(
    Args,
    name="request_user_input",
    description=(
        "Ask the person 1 to 3 short questions and wait for the answers. Use it when you cannot go on without "
        'a decision that only they can make. Answers with JSON: {"answers": {id: what they chose or said}}.'
    ),
    effect=Effect.READ,
    needs=needs,
    run=run,
    lane=Lane.NONE,
    asks=asks,
)
