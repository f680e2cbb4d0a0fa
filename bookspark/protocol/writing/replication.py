"""What write quorum means for a ledger: best effort, or guaranteed. One policy object a ledger, chosen at its creation.

Law of **best effort** (BookKeeper): an entry is done with at an ack quorum. A new fragment starts after the last
confirmed entry, so no add may complete while an ensemble change is under way: it would lie before the fragment on the
old bookies, or on bookies that the new one does not name. What an ensemble change or a close leaves at an ack quorum is
left to autorecovery.

Law of **guaranteed** ("Guaranteeing write quorum", tweaks 1 to 3): every id up to LAFR, and every id of every fragment
but the last, is on WQ bookies; after the close every id is. An entry is acknowledged at an ack quorum but kept until
its write set is complete. A new fragment starts after LAFR and takes all below WQ along, the confirmed ones too, so

* bookies that hold a confirmed entry which is below WQ are *pinned*: they are not replaced now (figures 3 and 5);
* of an entry that has reached WQ, but comes after one that has not, an ack quorum stays in place. The paper replaces
  one bookie at a time, and then this holds by itself; here many failures make one change;
* while a change is under way adds go on completing, counting only bookies that stay;
* the writer closes once nothing is below WQ, and recovery starts after LAFR, writes back to WQ, and never closes below
  the highest LAC that it heard. Without bookies to replace failed ones, neither closes: it waits or leaves the ledger
  as it is.

Two bookies that fail for good may each be pinned by an entry that only the other one lacks. Then the ledger waits for
one of them; that is beyond AQ − 1 failures at WQ 3, AQ 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication


class BestEffort:
    """Write quorum is an aim."""

    __slots__ = ()
    keeps_confirmed = False
    """Is an entry kept after it is confirmed?"""
    withholds_adds = True
    """Does no add complete while an ensemble change is under way?"""
    gives_up = True
    """Is the ledger closed at its last confirmed entry if there are not enough bookies to go on?"""

    def copies(self, metadata: LedgerMetadata) -> int:
        """So many synced copies, and the writer or the recoverer is done with an entry."""
        return metadata.ack_quorum

    def replaceable(
        self, failed: frozenset[str], confirmed: Iterable[Set[str]], metadata: LedgerMetadata
    ) -> frozenset[str]:
        """Which of ``failed`` may leave now. ``confirmed``: who holds each entry that is confirmed and still kept."""
        return failed

    def recover_after(self, last_add_confirmed: int, last_add_fully_replicated: int) -> int:
        """Ledger recovery need not look at ids up to this one."""
        return last_add_confirmed


class GuaranteedWriteQuorum(BestEffort):
    """Write quorum is a promise."""

    __slots__ = ()
    keeps_confirmed = True
    withholds_adds = False
    gives_up = False

    def copies(self, metadata: LedgerMetadata) -> int:
        return metadata.write_quorum

    def replaceable(
        self, failed: frozenset[str], confirmed: Iterable[Set[str]], metadata: LedgerMetadata
    ) -> frozenset[str]:
        whole: list[Set[str]] = []
        pinned: set[str] = set()
        for holders in confirmed:
            if len(holders) < metadata.write_quorum:
                pinned |= holders
            else:
                whole.append(holders)
        leaving: set[str] = set()
        for bookie in sorted(failed - pinned):
            if all(len(holders - leaving - {bookie}) >= metadata.ack_quorum for holders in whole):
                leaving.add(bookie)
        return frozenset(leaving)

    def recover_after(self, last_add_confirmed: int, last_add_fully_replicated: int) -> int:
        return last_add_fully_replicated


def replication_of(metadata: LedgerMetadata) -> BestEffort:
    """The policy that the ledger was created with."""
    return GuaranteedWriteQuorum() if metadata.replication is Replication.GUARANTEED else BestEffort()
