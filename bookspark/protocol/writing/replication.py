"""Meaning of the write quorum of a ledger: best effort, or guaranteed. One policy object a ledger, chosen at its creation.

WQ is the write quorum, AQ the ack quorum, LAC the last add confirmed, LAFR the last add fully replicated.

Law of **best effort** (BookKeeper): the writer releases an entry at an ack quorum. A new fragment starts after the last confirmed
entry, so no add may complete during an ensemble change. It would lie before the fragment on the old bookies, or on bookies that
the new fragment does not name. Autorecovery completes copies left at an ack quorum.

Law of **guaranteed** ("Guaranteeing write quorum", tweaks 1 to 3; docs/decisions/guaranteed-write-quorum.md): every id up to
LAFR, and every id of every fragment but the last, is on WQ bookies; after the close every id is. An entry is acknowledged at an
ack quorum, and kept until its write set is complete. A new fragment starts after LAFR and takes along all entries below WQ, the
confirmed ones too. Therefore

* bookies with a confirmed entry below WQ are *pinned*: they are not replaced now (figures 3 and 5);
* an entry that has reached WQ behind one that has not keeps an ack quorum in place: many failures make one change, unlike in the
  paper;
* adds complete during a change, and only bookies that stay count;
* the writer closes once nothing is below WQ. Recovery starts after LAFR, writes back to WQ, and never closes below the highest
  LAC that it received. Without replacements for failed bookies neither closes: it waits, or leaves the ledger as it is. With more
  failures than promised, a ledger may wait for one of its bookies.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication


class BestEffort:
    """Write quorum is an aim."""

    __slots__ = ()
    keeps_confirmed = False
    """Does the writer keep a confirmed entry (until its whole write set has it)?"""
    withholds_adds = True
    """Are acknowledgements withheld during an ensemble change?"""
    gives_up = True
    """Is the ledger closed at its last confirmed entry if there are too few bookies to go on?"""

    def copies(self, metadata: LedgerMetadata) -> int:
        """Synced copies of an entry before it is released."""
        return metadata.ack_quorum

    def replaceable(
        self, failed: frozenset[str], confirmed: Iterable[Set[str]], metadata: LedgerMetadata
    ) -> frozenset[str]:
        """Failed bookies that may leave now. ``confirmed``: the holders of each confirmed entry still kept."""
        return failed

    def recover_after(self, last_add_confirmed: int, last_add_fully_replicated: int) -> int:
        """The id after which ledger recovery starts to read."""
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
    """The policy chosen at the ledger's creation."""
    return GuaranteedWriteQuorum() if metadata.replication is Replication.GUARANTEED else BestEffort()
