"""Times: integers of microseconds since 1970 in the records, RFC 3339 UTC in what people see."""

import time
from datetime import UTC, datetime
from functools import lru_cache


class SystemClock:
    """The machine's own clocks, as the `Clock` port."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


def rfc3339(at: int) -> str:
    """Microseconds as text, always with six decimals, so that text order is time order."""
    seconds, micros = divmod(at, 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    t = time.gmtime(seconds)
    return f"{t[0]:04d}-{t[1]:02d}-{t[2]:02d}T{t[3]:02d}:{t[4]:02d}:{t[5]:02d}"


def microseconds(moment: datetime) -> int:
    """The other way round; a time without a zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
