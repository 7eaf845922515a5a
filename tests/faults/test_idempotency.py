"""One Idempotency-Key, one call: however many ask at once, and whoever dies meanwhile."""

import asyncio
from collections import Counter
from random import Random

import pytest

from tests.faults.data_checks import FINAL, Acknowledged, broken_promises
from tests.faults.raw_sockets import GONE, Answer, Body, wired
from tests.faults.service_processes import HANG, Service

MANY = 50


async def test_fifty_at_once_make_one_call_also_after_a_kill(service: Service) -> None:
    asked = append("a", 0.05)

    answers = await post_many(service.port, asked, "k", waits=[None] * MANY)
    service.kill()
    service.start()
    later = await post_many(service.port, asked, "k", waits=[0] * 5)
    other = await post_many(service.port, append("b"), "k", waits=[0] * 5)
    fresh = await post_many(service.port, append("b"), "another", waits=[None])

    first = answers[0].body
    assert [answer.status for answer in answers] == [200] * MANY
    assert all(answer.body == first for answer in answers + later)
    assert [(answer.status, answer.body["code"]) for answer in other] == [(409, "IdempotencyConflict")] * 5
    assert fresh[0].body["id"] != first["id"]
    assert service.effects == ["a", "b"]
    assert broken_promises(service.database, service.effects, noted([first, fresh[0].body])) == []


@pytest.mark.parametrize("tool", ["append", "turn"])
async def test_a_kill_between_many_that_ask_makes_no_second_call(service: Service, tool: str) -> None:
    random, told = Random(7), Acknowledged()

    for number in range(10):
        asked = {"tool": tool, "arguments": {"token": f"t{number}", "seconds": random.uniform(0, 0.03)}}
        waits = [random.choice((0, 0.01, None)) for _ in range(MANY)]
        posting = asyncio.create_task(post_many(service.port, asked, f"k{number}", waits))
        await asyncio.sleep(random.uniform(0.001, 0.08))
        service.kill()
        async with asyncio.timeout(HANG):
            before = await posting
        service.start()
        after = await post_many(service.port, asked, f"k{number}", [5, 0, 5])
        for answer in sorted(before, key=has_ended) + sorted(after, key=has_ended):
            told.note(answer.body, f"t{number}", f"k{number}")
        assert {answer.body["status"] for answer in after if answer.status == 200} <= set(FINAL)

    await service.settle()
    assert Counter(told.tokens.values()) == Counter({f"t{number}": 1 for number in range(10)})
    assert broken_promises(service.database, service.effects, told) == []


async def post_many(port: int, asked: Body, key: str, waits: list[float | None]) -> list[Answer]:
    """Each on a connection of its own, all at once; those who were answered."""
    found = await asyncio.gather(*(post(port, asked, key, wait) for wait in waits))
    return [answer for answer in found if answer is not None]


async def post(port: int, asked: Body, key: str, wait: float | None) -> Answer | None:
    try:
        async with wired(port) as wire:
            return await wire.call(asked, wait, key)
    except GONE:
        return None


def has_ended(answer: Answer) -> bool:
    """For answers that came at the same time: those about the end come last."""
    return answer.body["status"] in FINAL


def append(token: str, seconds: float = 0) -> Body:
    return {"tool": "append", "arguments": {"token": token, "seconds": seconds}}


def noted(calls: list[Body]) -> Acknowledged:
    told = Acknowledged()
    for call in calls:
        told.note(call, call["arguments"]["token"])
    return told
