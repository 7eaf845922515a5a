"""Several calls leaked as one: run as several, answered as one."""

from typing import Any

import pytest

from app.core.runs import Failure, Json, Media, ModelCall, Reply, Text, ToolOffer
from app.providers.parallel_wrapper import expand, merge
from tests.providers.chat_cases import OFFER, QUIET
from tests.providers.neutral import PIXEL, knowing

WEATHER_USE = {"recipient_name": "functions.get_weather", "parameters": {"location": "Oslo"}}
QUIET_USE = {"recipient_name": "list_sessions"}


def wrapper(*uses: Any, name: str = "multi_tool_use.parallel", id: str | None = "call_w") -> ModelCall:
    return ModelCall(id=id, name=name, arguments={"tool_uses": list(uses)})


def child(number: int | None, name: str = "get_weather", id: str | None = "call_w") -> ModelCall:
    return ModelCall(id=id, name=name, arguments={}, sub_index=number)


@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "parallel"])
def test_a_wrapper_becomes_the_calls_in_it(name: str) -> None:
    before, after = ModelCall(id="call_a", name="x"), ModelCall(id="call_b", name="y")

    calls = expand([before, wrapper(WEATHER_USE, QUIET_USE, name=name), after], knowing(OFFER, QUIET))

    assert calls == [
        before,
        ModelCall(id="call_w", name="get_weather", arguments={"location": "Oslo"}, sub_index=0),
        ModelCall(id="call_w", name="list_sessions", arguments={}, sub_index=1),
        after,
    ]


def test_parameters_that_cannot_be_read_are_the_matter_of_their_call_alone() -> None:
    broken = {"recipient_name": "functions.get_weather", "parameters": "{"}

    first, second = expand([wrapper(broken, QUIET_USE)], knowing(OFFER, QUIET))

    assert (first.name, first.raw_arguments) == ("get_weather", "{")
    assert second.arguments == {}


@pytest.mark.parametrize(
    "call",
    [
        wrapper(WEATHER_USE, {"recipient_name": "functions.nope", "parameters": {}}),
        wrapper(WEATHER_USE, {"parameters": {}}),
        wrapper(WEATHER_USE, "get_weather"),
        wrapper(),
        wrapper(WEATHER_USE, name="something_else"),
        ModelCall(id="a", name="parallel", arguments={"tool_uses": {}}),
        ModelCall(id="a", name="parallel", arguments_error="The arguments are not JSON.", raw_arguments="{"),
        ModelCall(id="a", name="parallel", type="custom", input="x"),
    ],
)
def test_what_is_not_wholly_understood_stays_one_call(call: ModelCall) -> None:
    assert expand([call], knowing(OFFER, QUIET)) == [call]


def test_parameters_nested_without_end_are_not_understood() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    call = wrapper(QUIET_USE, WEATHER_USE | {"parameters": deep})

    assert len(expand([call], knowing(OFFER, QUIET))) == 1


def test_a_tool_of_that_name_is_no_wrapper() -> None:
    own = ToolOffer(name="parallel", description="", schema={})
    call = wrapper(WEATHER_USE, name="parallel")

    assert expand([call], knowing(OFFER, own)) == [call]


def test_replies_to_the_calls_of_a_wrapper_become_one_where_the_first_stands() -> None:
    shot = Media(mime="image/png", data=PIXEL)
    before, after = Reply(call=child(None, id="call_a")), Reply(call=child(None, id="call_b"))

    replies = merge(
        [
            before,
            Reply(call=child(0), parts=(Text("12 C"), shot, Json([1]))),
            Reply(call=child(1, "list_sessions")),
            Reply(call=child(2, "read_file"), error=Failure("ENOENT", "no such file: a")),
            after,
        ]
    )

    assert replies == [
        before,
        Reply(
            call=ModelCall(id="call_w", name="multi_tool_use.parallel", arguments={}),
            parts=(
                Text("get_weather:\n12 C\n[1]"),
                shot,
                Text("list_sessions:\n(no output)"),
                Text("read_file:\n[ERROR:ENOENT] no such file: a"),
            ),
        ),
        after,
    ]


def test_a_wrapper_has_failed_only_when_all_in_it_have() -> None:
    failures = [Reply(call=child(number), error=Failure("Timeout", "slow")) for number in range(2)]

    (merged,) = merge(failures)

    assert merged.error == Failure("Timeout", "None of these calls succeeded.")
    assert merged.parts == (Text("get_weather:\n[ERROR:Timeout] slow"),) * 2


def test_two_wrappers_stay_two_even_without_ids() -> None:
    calls = [child(number, id=id) for id in (None, "call_w") for number in (0, 1, 0, 1)]

    assert [len(reply.parts) for reply in merge([Reply(call=call) for call in calls])] == [2, 2, 2, 2]


def test_calls_that_share_an_id_without_a_wrapper_stay_apart() -> None:
    replies = [Reply(call=child(None)), Reply(call=child(None))]

    assert merge(replies) == replies
