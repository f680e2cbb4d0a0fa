"""Search for a time among ascending times: it matches a scan and needs few reads, however uneven the times are."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from random import Random

import pytest

from bookspark.logs.chain.time_search import first_at

EVEN, STEPS, BURSTS, GROWING = "even", "steps", "bursts", "growing"


def times_of(kind: str, count: int, random: Random) -> list[int]:
    time_ms, times = 1000, []
    for number in range(count):
        if kind == EVEN:
            time_ms += int(random.expovariate(1 / 500))
        elif kind == STEPS:
            time_ms += 0 if number % 100 else random.choice([1, 3, 700])
        elif kind == BURSTS:
            time_ms += random.choice([0, 0, 1]) if random.random() < 0.99 else 3_600_000
        else:
            time_ms = int(1000 * 1.001**number)
        times.append(time_ms)
    return times


@pytest.mark.parametrize("kind", [EVEN, STEPS, BURSTS, GROWING])
@pytest.mark.parametrize("stretch", [1, 8, 32])
def test_search_matches_a_scan_and_needs_few_reads(kind: str, stretch: int) -> None:
    random = Random(f"{kind}{stretch}")
    reads = 0

    def counted(read: Callable[[int, int], list[int]]) -> Callable[[int, int], list[int]]:
        def called(first: int, last: int) -> list[int]:
            nonlocal reads
            assert first <= last < first + stretch
            reads += 1
            return read(first, last)

        return called

    for count in [*range(20), 1000, 10_000]:
        times = times_of(kind, count, random)
        read = counted(lambda first, last: times[first : last + 1])  # noqa: B023
        wanted = [random.choice(times) + random.randint(-1, 1) for _ in range(30)] if times else []
        for time_ms in (0, 1 << 60, *wanted):
            low = random.choice([0, random.randrange(count) if count else 0])
            right = max(low, bisect_left(times, time_ms))
            reads = 0
            assert first_at(time_ms, low, count, read, stretch) == right
            assert reads <= math.ceil(math.log2(max(1, count / stretch))) + 5
            before = times[low - 1] if low else None
            if before is not None and before < time_ms:
                assert first_at(time_ms, low, count, read, stretch, before) == right
            if right < count:
                assert first_at(time_ms, low, right, read, stretch, None, times[right]) == right


def test_search_among_even_times_needs_under_seven_reads_on_average() -> None:
    random = Random(7)
    times, reads = times_of(EVEN, 100_000, random), 0

    def read(first: int, last: int) -> list[int]:
        nonlocal reads
        reads += 1
        return times[first : last + 1]

    for _ in range(200):
        time_ms = random.randrange(times[0], times[-1])
        assert first_at(time_ms, 0, len(times), read, 8) == bisect_left(times, time_ms)
    # Bisection alone takes 14 reads each.
    assert reads < 200 * 7
