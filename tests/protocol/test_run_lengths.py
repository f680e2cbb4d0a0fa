"""Where the runs end in which entries are copied."""

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
def test_a_run_ends_where_a_batch_does(first, batch_ends, end):
    assert run_end(first, PER_RUN, batch_ends) == end


@pytest.mark.parametrize("batch_ends", [[29], [230], [29, 230]])
def test_a_run_in_which_no_batch_ends_is_as_long_as_without_them(batch_ends):
    assert run_end(30, PER_RUN, batch_ends) == 129


def test_a_run_has_one_entry_at_least_and_no_more_than_it_may():
    assert run_entries(closed(9, entry_bytes=3 * RUN_BYTES), 10_000) == 1
    assert run_entries(closed(99_999, entry_bytes=1), 10_000) == 10_000
    assert run_entries(closed(-1, entry_bytes=1), 10_000) == 10_000
    assert run_entries(closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN), 10_000) == PER_RUN


class Written(Bookies):
    """Notes the runs that are written."""

    def __init__(self, copying):
        super().__init__(copying)
        self.runs = []

    def add(self, bookie, ids):
        self.runs.append((ids[0], ids[-1]))
        return super().add(bookie, ids)


@pytest.mark.parametrize("batch", [33, 70, 130, 199])
def test_what_is_copied_is_not_cut_where_it_is_known_where_batches_end(batch):
    found = closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN)
    ends = [*range(batch - 1, ENTRIES - 1, batch), ENTRIES - 1]
    bookies = Written(EntryCopying(found, [Copy(0, ENTRIES - 1, "b9")], 10_000, batch_ends=ends))
    assert isinstance(bookies.run(), Finish)
    assert sorted(bookies.copied["b9"]) == list(range(ENTRIES))
    assert {last for _, last in bookies.runs} <= set(ends)
    assert (0, 2 * PER_RUN // batch * batch - 1) in bookies.runs, "as many batches as fit"


def test_long_runs_count_as_long_as_they_are():
    """Else two of them would be begun where there is room for one."""
    found = closed(ENTRIES - 1, entry_bytes=RUN_BYTES // PER_RUN)
    ends = range(PER_RUN - 1, ENTRIES, PER_RUN)
    copying = EntryCopying(found, [Copy(0, ENTRIES - 1, "b9")], 10_000, room=Room(3 * RUN_BYTES), batch_ends=ends)
    assert [(read.first, read.last) for read in copying.start()] == [(0, 2 * PER_RUN - 1)]
