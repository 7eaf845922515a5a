"""A histogram for metrics."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """A histogram: how many values fell under each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def record(self, value: float) -> None:
        """Count a value. One that is on a bound is under it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> "Histogram":
        """A copy that later values do not change."""
        copied = Histogram(self.bounds)
        copied.counts, copied.sum = self.counts.copy(), self.sum
        return copied
