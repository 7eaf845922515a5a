from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from app.core.util.ids import Ids, time_of

LAST_MICROSECOND = 16**14 - 1


@dataclass
class JumpingClock:
    """Shows the times it was given, one after the other."""

    times: list[int]

    def now(self) -> int:
        return self.times.pop(0)

    def monotonic(self) -> float:
        return 0.0


def test_an_id_is_its_prefix_its_time_and_ten_random_digits() -> None:
    id, at = Ids(JumpingClock([0xABC])).new("call")

    assert at == 0xABC
    assert id[:19] == "call_00000000000abc"
    assert len(id) == 29
    assert int(id[19:], 16) < 2**40


def test_ids_of_the_same_microsecond_on_two_machines_differ() -> None:
    made = {Ids(JumpingClock([7])).new("call")[0] for _ in range(100)}

    assert len(made) == 100


@given(st.lists(st.integers(0, LAST_MICROSECOND // 2), min_size=1, max_size=30))
def test_ids_sort_by_birth_however_the_clock_jumps(times: list[int]) -> None:
    ids = Ids(JumpingClock(times.copy()))

    made = [ids.new("call") for _ in times]

    names, born = [id for id, _ in made], [at for _, at in made]
    assert names == sorted(names)
    assert len(set(born)) == len(born)
    assert [time_of(name) for name in names] == born
    assert all(at >= shown for at, shown in zip(born, times, strict=True))


def test_a_clock_that_went_back_gives_the_next_microsecond_after_the_newest() -> None:
    ids = Ids(JumpingClock([1000, 500, 2000]))

    assert [ids.new("call")[1] for _ in range(3)] == [1000, 1001, 2000]


def test_ids_begin_behind_the_newest_one_of_an_earlier_start() -> None:
    earlier, _ = Ids(JumpingClock([5000])).new("call")

    later, at = Ids(JumpingClock([10]), newest=time_of(earlier)).new("call")

    assert at == 5001
    assert later > earlier


def test_what_is_not_an_id_carries_no_time() -> None:
    assert [time_of(text) for text in ("", "call", "call_", "call_xyz", "no id at all")] == [0, 0, 0, 0, 0]
