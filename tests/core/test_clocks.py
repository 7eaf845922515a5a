from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from app.core.util.clocks import SystemClock, microseconds, rfc3339

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(timezones=zones, min_value=datetime(1900, 1, 1), max_value=datetime(9000, 1, 1))
instants = st.integers(microseconds(datetime(1, 1, 1)), microseconds(datetime(9999, 1, 1)))


@given(instants)
def test_microseconds_survive_the_way_through_text(at: int) -> None:
    assert microseconds(datetime.fromisoformat(rfc3339(at))) == at


@given(moments)
def test_a_moment_survives_the_way_through_microseconds_whatever_its_zone(moment: datetime) -> None:
    assert datetime.fromisoformat(rfc3339(microseconds(moment))) == moment


@given(instants, instants)
def test_text_order_is_time_order(one: int, other: int) -> None:
    assert (rfc3339(one) < rfc3339(other)) == (one < other)


def test_a_time_is_told_in_utc_with_six_decimals() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"
    assert rfc3339(1_767_225_599_000_001) == "2025-12-31T23:59:59.000001Z"


def test_a_moment_without_a_zone_is_taken_as_utc() -> None:
    there = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))

    assert microseconds(datetime(2026, 1, 1)) == microseconds(datetime(2026, 1, 1, tzinfo=UTC)) == microseconds(there)


def test_the_system_clock_tells_microseconds_and_never_goes_back() -> None:
    clock = SystemClock()

    before, shown, after = datetime.now(UTC), clock.now(), datetime.now(UTC)

    assert microseconds(before) <= shown <= microseconds(after)
    assert clock.monotonic() <= clock.monotonic()
