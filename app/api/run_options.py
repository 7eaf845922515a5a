"""How a run is wanted: what stands beside the message, in the query and the headers."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query

from app.api.calls import Wait
from app.api.submissions import DEFAULT_WAIT

Replay = Annotated[
    Literal["outputs", "full"],
    Query(description="openai-responses: append only the outputs, or the whole output list before them."),
]
Seconds = Annotated[
    float | None,
    Query(alias="timeout", gt=0, le=86_400, description="Seconds each tool may run, instead of its own limit."),
]
AskSeconds = Annotated[
    float | None,
    Query(alias="ask_timeout", gt=0, le=604_800, description="Seconds a person has to answer what a call asks."),
]
OnAsk = Annotated[
    Literal["wait", "deny"] | None, Query(description="`deny`: nobody is asked, and what would be is denied.")
]
IsTied = Annotated[
    bool,
    Query(alias="cancel_on_disconnect", description="Cancel the calls when the connection that made them closes."),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="Needed only where the provider gives its calls no ids of their own.",
    ),
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`each` is what every call of it is asked with."""

    wait: float
    is_replayed: bool
    is_tied: bool
    idempotency_key: str | None
    each: dict[str, Any]


async def run_options(
    wait: Wait = DEFAULT_WAIT,
    replay: Replay = "outputs",
    seconds: Seconds = None,
    ask_seconds: AskSeconds = None,
    on_ask: OnAsk = None,
    is_tied: IsTied = False,
    idempotency_key: IdempotencyKey = None,
) -> RunOptions:
    each = {"timeout": seconds, "ask_timeout": ask_seconds, "on_ask": on_ask, "cancel_on_disconnect": is_tied}
    return RunOptions(wait, replay == "full", is_tied, idempotency_key, each)


Wanted = Annotated[RunOptions, Depends(run_options)]
