"""Server-sent events, cut as the standard says, wherever the pieces end."""

import pytest

from app.mcp.client.transports.sse_parser import SseEvent, SseParser

TEXT = (
    "\ufeff: a comment\n"
    "data: one\n\n"
    "event: other\r\ndata:two\r\ndata:  lines\r\n\r\n"
    "id: 7\rdata: three\r\r"
    "data\ndata\n\n"
    "id: 8\ndata:\n\n"
    "id: bad\0\nretry: 250\nretry: x\nunknown: x\ndata: vier ☂\n\n"
    "event: dropped, for there is no data\n\n"
    "data: without an end\n"
)
EVENTS = [
    SseEvent("message", b"one", None),
    SseEvent("other", b"two\n lines", None),
    SseEvent("message", b"three", "7"),
    SseEvent("message", b"\n", None),
    SseEvent("message", b"", "8"),
    SseEvent("message", "vier ☂".encode(), None),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 1000])
def test_events_are_cut_wherever_the_pieces_end(size: int) -> None:
    events, found, data = SseParser(lambda: None), list[SseEvent](), TEXT.encode()

    for at in range(0, len(data), size):
        found += events.feed(data[at : at + size])

    assert found == EVENTS
    assert (events.last_id, events.retry) == ("8", 0.25)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_event_that_is_too_large_is_passed_over(size: int) -> None:
    dropped: list[bool] = []
    events, found = SseParser(lambda: dropped.append(True), limit=20), list[SseEvent]()
    data = b"data: " + b"x" * 50 + b"\n\ndata: fits in here\n\n" + b"data: 12345678\n" * 4 + b"\ndata: on\n\n"

    for at in range(0, len(data), size):
        found += events.feed(data[at : at + size])

    assert [event.data for event in found] == [b"fits in here", b"on"]
    assert dropped == [True, True]


@pytest.mark.parametrize("half", [b"id: 4", b"id: 4\n", b"id: 4\ndata: half", b"id: 4\ndata: half\n"])
def test_a_stream_that_is_opened_again_begins_anew_behind_the_last_event_that_was_whole(half: bytes) -> None:
    events = SseParser(lambda: None)
    list(events.feed(b"id: 3\n\n" + half))

    events.restart()

    assert events.last_id == "3"
    assert list(events.feed(b"\ndata: whole\n\n")) == [SseEvent("message", b"whole", None)]
    assert events.last_id == "3"
    assert list(events.feed(b"id: 4\ndata: half\n\n")) == [SseEvent("message", b"half", "4")]
    assert events.last_id == "4"


def test_an_event_that_is_too_large_is_not_asked_for_again() -> None:
    events = SseParser(lambda: None, limit=20)

    assert list(events.feed(b"id: 5\ndata: " + b"x" * 50 + b"\n\n")) == []
    assert events.last_id == "5"
