"""Tellings: live output comes in few pieces, in order and without a gap."""

import asyncio

from app.core.calls import Call
from app.dispatch.events.output_throttle import BURST, MIXED, PER_SECOND, OutputThrottle
from tests.support.services import HANG, until

CALL = Call("call_1", "admin", "toy", 0)


class Ears:
    """A hub that writes down what it is told, and when."""

    def __init__(self) -> None:
        self.is_listening = True
        self.pieces: list[tuple[int, str, bytes]] = []

    def has_output_listeners(self, call: Call) -> bool:
        return self.is_listening

    def publish_output(self, call: Call, start: int, stream: str, data: bytes) -> None:
        self.pieces.append((start, stream, data))

    def whole(self) -> bytes:
        """Everything, after a look at the offsets."""
        at = 0
        for start, _, data in self.pieces:
            assert start == at
            at += len(data)
        return b"".join(data for _, _, data in self.pieces)


def rows(count: int, *streams: str) -> list[tuple[int, str, bytes]]:
    return [(4 * number, streams[number % len(streams)], b"%03d " % number) for number in range(count)]


async def test_the_first_pieces_are_told_at_once() -> None:
    ears = Ears()

    OutputThrottle(CALL, ears).publish(rows(1, "stdout"))

    assert ears.pieces == [(0, "stdout", b"000 ")]


async def test_a_flood_is_told_at_most_twenty_times_a_second() -> None:
    ears, loop = Ears(), asyncio.get_running_loop()
    begun = loop.time()
    telling = OutputThrottle(CALL, ears)

    for row in (flood := rows(300, "stdout")):
        telling.publish([row])
        await asyncio.sleep(0.001)
    telling.finish()

    assert ears.whole() == b"".join(data for _, _, data in flood)
    assert len(ears.pieces) <= BURST + PER_SECOND * (loop.time() - begun)
    assert {stream for _, stream, _ in ears.pieces} == {"stdout"}


async def test_two_streams_in_turns_are_told_apart_as_long_as_that_is_few_pieces() -> None:
    ears = Ears()
    few = rows(3, "stdout", "stderr")

    OutputThrottle(CALL, ears).publish(few)

    assert ears.pieces == few


async def test_two_streams_in_quick_turns_are_told_mixed() -> None:
    ears, loop = Ears(), asyncio.get_running_loop()
    begun = loop.time()
    telling = OutputThrottle(CALL, ears)
    many = rows(400, "stdout", "stderr")

    for first in range(0, 400, 40):
        telling.publish(many[first : first + 40])
        await asyncio.sleep(0.01)
    telling.finish()

    assert ears.whole() == b"".join(data for _, _, data in many)
    assert len(ears.pieces) <= BURST + PER_SECOND * (loop.time() - begun)
    assert MIXED in {stream for _, stream, _ in ears.pieces}


async def test_what_has_to_wait_is_told_without_more_coming() -> None:
    ears = Ears()
    telling = OutputThrottle(CALL, ears)
    for row in rows(20, "stdout"):
        telling.publish([row])
    assert len(ears.pieces) < BURST

    async with asyncio.timeout(HANG):
        await until(lambda: len(ears.whole()) == 80)

    assert telling._timer is None


async def test_the_end_waits_for_nothing_and_leaves_nothing() -> None:
    ears = Ears()
    telling = OutputThrottle(CALL, ears)
    for row in rows(50, "stdout", "stderr"):
        telling.publish([row])

    telling.finish()

    assert ears.whole() == b"".join(data for _, _, data in rows(50, "stdout"))
    assert len(ears.pieces) <= BURST
    assert telling._timer is None


async def test_where_nobody_listens_nothing_is_held() -> None:
    ears = Ears()
    telling = OutputThrottle(CALL, ears)
    for row in rows(20, "stdout"):
        telling.publish([row])
    told = list(ears.pieces)

    ears.is_listening = False
    telling.publish([(80, "stdout", b"more")])
    telling.finish()

    assert ears.pieces == told
    assert not telling._runs
