"""VD ledgers and a bookie that missed confirmed entries: its cursor must not wait for entries that it will never get."""

from __future__ import annotations

from bookspark.protocol.writing.writer import BookieBack, Sync
from tests.protocol.ledger_pair import UNREACHABLE, LedgerPair


def confirmed_without_b3(**options):
    """e0, acknowledged and synced by b1 and b2 while b3 was unreachable; there are no spare bookies."""
    pair = LedgerPair(volatile=True, **options)
    pair.append()
    pair.writer.refuses("b3", response=UNREACHABLE)
    pair.writer.chooses()
    pair.writer.refuses("b3", response=UNREACHABLE)
    pair.writer.answers("b1")
    pair.writer.answers("b2")
    pair.writer.step(Sync())
    pair.writer.refuses("b3", "sync", response=UNREACHABLE)
    pair.writer.answers("b1")
    pair.writer.answers("b2")
    assert (pair.writer.confirmed, pair.writer.sent, pair.writer.wanted) == (0, [], [])
    return pair


def test_bookie_that_missed_a_confirmed_entry_confirms_later_entries():
    """It was asked to sync without a pause, and no sync completed once another bookie was lost."""
    pair = confirmed_without_b3()
    pair.writer.step(BookieBack("b3", pair.bookies("b3").incarnation))
    pair.append()
    pair.writer.answers("b2")
    pair.writer.answers("b3")
    pair.writer.refuses("b1", response=UNREACHABLE)
    pair.writer.chooses()
    pair.writer.refuses("b1", response=UNREACHABLE)
    pair.writer.step(Sync())
    pair.writer.refuses("b1", response=UNREACHABLE)
    pair.writer.answers("b2")
    pair.writer.answers("b3")
    assert (pair.writer.confirmed, pair.writer.sent) == (1, [])
    assert pair.bookies("b3").entries.keys() == {1}


def test_bookie_that_lost_entries_synced_elsewhere_confirms_later_entries():
    pair = LedgerPair(volatile=True)
    pair.appended(2)
    pair.writer.step(Sync())
    pair.writer.answers("b1")
    pair.writer.answers("b2")
    pair.writer.refuses("b3", response=UNREACHABLE)
    pair.writer.chooses()
    assert pair.writer.confirmed == 1
    pair.restart("b3")
    pair.appended()
    pair.writer.step(Sync())
    pair.writer.parks("b1")
    pair.writer.answers("b2")
    pair.writer.answers("b3")
    assert pair.writer.confirmed == 2


def test_sync_is_not_repeated_while_the_bookie_lacks_an_earlier_entry():
    """An answer without news was followed by the same request."""
    pair = LedgerPair(volatile=True)
    pair.append(2)
    pair.writer.answers("b1")
    pair.writer.answers("b2")
    pair.writer.answers("b3", 1)
    pair.writer.step(Sync())
    pair.writer.answers("b3", "sync")
    assert "sync" not in pair.writer.waits_for("b3")
    pair.writer.answers("b3", 0)
    assert pair.writer.waits_for("b3") == ["sync"]
