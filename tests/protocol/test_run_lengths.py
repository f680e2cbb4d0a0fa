"""Ends of the runs in which entries are copied."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.actions import Finish
from bookspark.protocol.repair.entry_copying import RUN_BYTES, EntryCopying, Room, run_end, run_entries
from bookspark.protocol.repair.replication_plan import Copy
from tests.protocol.test_entry_copying import Bookies, closed

PER_RUN = 100
ENTRIES = 10 * PER_RUN


@pytest.mark.parametrize(
    ("first", "batch_ends", "end"),
    [
        (0, [], 99),
        (50, [], 149),
        (0, [29, 129, 199, 229], 199),
        (0, [29, 129, 198, 200], 198),
        (30, [29, 129, 230], 129),
        (30, [29, 229], 229),
    ],
)
def test_run_ends_at_the_end_of_an_entry_batch(first, batch_ends, end):
    assert run_end(first, PER_RUN, batch_ends) == end


@pytest.mark.parametrize("batch_ends", [[29], [230], [29, 230]])
def test_run_without_a_batch_end_has_the_usual_length(batch_ends):
    assert run_end(30, PER_RUN, batch_ends) == 129


def test_run_has_at_least_one_entry_and_at_most_the_limit():
    assert run_entries(closed(9, entry_bytes=3 * RUN_BYTES), 10_000) == 1
    assert run_entries(closed(99_999, entry_bytes=1), 10_000) == 10_000
    assert run_entries(closed(-1, entry_bytes=1), 10_000) == 10_000
    assert run_entries(closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN), 10_000) == PER_RUN


class Written(Bookies):
    """Records the written runs."""

    def __init__(self, copying):
        super().__init__(copying)
        self.runs = []

    def add(self, bookie, ids):
        self.runs.append((ids[0], ids[-1]))
        return super().add(bookie, ids)


@pytest.mark.parametrize("batch", [33, 70, 130, 199])
def test_copied_runs_end_at_known_batch_ends(batch):
    found = closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN)
    ends = [*range(batch - 1, ENTRIES - 1, batch), ENTRIES - 1]
    bookies = Written(EntryCopying(found, [Copy(0, ENTRIES - 1, "b9")], 10_000, batch_ends=ends))
    assert isinstance(bookies.run(), Finish)
    assert sorted(bookies.copied["b9"]) == list(range(ENTRIES))
    assert {last for _, last in bookies.runs} <= set(ends)
    assert (0, 2 * PER_RUN // batch * batch - 1) in bookies.runs, "as many batches as fit"


def test_long_runs_use_room_by_their_real_length():
    """Otherwise two of them would begin in the room of one."""
    found = closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN)
    ends = range(PER_RUN - 1, ENTRIES, PER_RUN)
    copying = EntryCopying(found, [Copy(0, ENTRIES - 1, "b9")], 10_000, room=Room(3 * RUN_BYTES), batch_ends=ends)
    assert [(read.first, read.last) for read in copying.start()] == [(0, 2 * PER_RUN - 1)]
