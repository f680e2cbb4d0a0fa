"""A ledger's metadata: its quorums, its fragments and its state.

Law: a metadata value never changes; each transition makes a new one, and only the transitions below exist::

    OPEN ──► IN_RECOVERY ──► CLOSED        (a recoverer)
      └────────────────────────▲           (the writer)
    a new last fragment, while not CLOSED  (the writer; a recoverer together with its close)
    another ensemble of a fragment that gets no more entries   (re-replication)

The fields are those of BookKeeper's ``LedgerMetadataFormat`` (bookkeeper-overview, "Metadata Store"), and the two immutable
choices of BP-14 (``ledger_type``) and of "Guaranteeing write quorum" (``replication``). Entry ids start at 0, and −1 stands for
no entry. (In the TLA+ specification they start at 1, and 0 stands for none.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bookspark.errors import ConfigurationError, InvalidArgumentError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss

NO_ENTRY = -1
"""The id before the first entry: an empty ledger's last entry, or a LAC (last add confirmed) that confirms nothing."""

WRITE_QUORUM_LABEL = "bookspark.write_quorum"
"""Custom metadata of a ledger that was made with fewer copies, because fewer bookies were there: the wanted write quorum, in
decimal. Autorecovery gives the closed ledger the other copies."""

LEDGER_ID_MAX = 9_999_999_999
"""The highest ledger id: the layout of ZooKeeper's paths has ten digits."""
BOOKKEEPERS_LEDGER_ID_MAX = (1 << 31) - 2
"""The highest id in a cluster for BookKeeper's clients: they use other paths beyond it (``HierarchicalLedgerManager``)."""


class LedgerState(Enum):
    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


class DigestType(Enum):
    """Protection of each entry, over (ledger, entry, LAC, length, payload).

    ``BOOKKEEPER_…``: exactly as BookKeeper's own clients do it. Such a ledger's record is BookKeeper's too, so they can write and
    read it (docs/compatibility.md)."""

    CRC32C = "CRC32C"
    CRC32 = "CRC32"
    HMAC = "HMAC"
    HMAC_SHA1 = "HMAC_SHA1"
    DUMMY = "DUMMY"
    BOOKKEEPER_CRC32C = "BOOKKEEPER_CRC32C"
    BOOKKEEPER_CRC32 = "BOOKKEEPER_CRC32"
    BOOKKEEPER_HMAC = "BOOKKEEPER_HMAC"
    BOOKKEEPER_DUMMY = "BOOKKEEPER_DUMMY"

    @property
    def bookkeepers(self) -> bool:
        """Is this a digest of BookKeeper's own clients?"""
        return self.value.startswith("BOOKKEEPER_")


class LedgerType(Enum):
    """Time of the acknowledgement (BP-14): PD, persistent durability, after the sync; VD, volatile durability, before it."""

    PD_JOURNAL = "PD_JOURNAL"
    VD_JOURNAL = "VD_JOURNAL"


class Replication(Enum):
    """Meaning of the write quorum: an aim (best effort) or a promise (guaranteed). The promise does not cover the last fragment
    of a ledger that is not closed."""

    BEST_EFFORT = "best_effort"
    GUARANTEED = "guaranteed"


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from ``first_entry_id`` on lie on ``ensemble``, bookie ids in write-set order."""

    first_entry_id: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One version of a ledger's record. ``last_entry_id`` and ``length`` (bytes) are known once it is CLOSED."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    master_key: bytes = field(default=b"", repr=False)
    password: bytes = field(default=b"", repr=False)
    """Only with a digest of BookKeeper: its clients compare the password itself."""
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    ctime_ms: int = 0
    c_token: int = 0
    """A random number by which the creating client recognises its own record when the answer to a create is lost."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    accepted_loss: AcceptedLoss | None = None
    """Losses that an operator declared to close the ledger."""

    def __post_init__(self) -> None:
        check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        if not self.fragments or self.fragments[0].first_entry_id != 0:
            raise ConfigurationError(f"ledger {self.ledger_id}: the first fragment has to start at entry 0")
        for fragment in self.fragments:
            if len(set(fragment.ensemble)) != self.ensemble_size:
                raise ConfigurationError(
                    f"ledger {self.ledger_id}: ensemble {fragment.ensemble} has not {self.ensemble_size} distinct bookies"
                )
        loss = self.accepted_loss
        if loss is not None and not (self.closed and all(one.first <= self.last_entry_id + 1 for one in loss.losses)):
            raise ConfigurationError(
                f"ledger {self.ledger_id}: a loss was accepted that is not one of its {self.state.value} record"
            )

    @property
    def closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def copies_wanted(self) -> int:
        """Copies of each entry that the ledger should have once it is closed: more than its write quorum if it was made while
        fewer bookies were there (``WRITE_QUORUM_LABEL``)."""
        wanted = self.custom_metadata.get(WRITE_QUORUM_LABEL, b"")
        return max(self.write_quorum, int(wanted)) if wanted.isdigit() and len(wanted) < 3 else self.write_quorum

    @property
    def lacks_copies(self) -> bool:
        """Is this a closed ledger that should get another copy? Not one with an accepted loss: its record says which copies are
        lost, and entries that nobody has can't be copied."""
        striped = self.ensemble_size > self.write_quorum
        return self.closed and not striped and self.accepted_loss is None and self.copies_wanted > self.write_quorum

    def is_same_ledger(self, other: LedgerMetadata) -> bool:
        """Can ``other`` be a version of the same ledger's record? Choices made at creation never change, but for the copies of a
        closed ledger that was made with fewer than wanted."""
        return (
            self.ledger_id == other.ledger_id
            and self.ack_quorum == other.ack_quorum
            and (self.ledger_type, self.replication) == (other.ledger_type, other.replication)
            and (
                (self.ensemble_size, self.write_quorum) == (other.ensemble_size, other.write_quorum)
                or self._grew(other)
            )
        )

    def _grew(self, other: LedgerMetadata) -> bool:
        small, large = sorted((self, other), key=lambda one: one.write_quorum)
        return (
            large.closed
            and large.ensemble_size - large.write_quorum == small.ensemble_size - small.write_quorum == 0
            and large.write_quorum <= small.copies_wanted
        )

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def bookies(self) -> list[str]:
        return sorted({bookie for fragment in self.fragments for bookie in fragment.ensemble})

    def fragment_of(self, entry_id: int) -> Fragment:
        return next(f for f in reversed(self.fragments) if f.first_entry_id <= entry_id)

    def write_set_of(self, entry_id: int) -> tuple[str, ...]:
        """In write-set order."""
        last = self.fragments[-1]
        ensemble = (last if last.first_entry_id <= entry_id else self.fragment_of(entry_id)).ensemble
        start = entry_id % self.ensemble_size
        return (ensemble + ensemble)[start : start + self.write_quorum]

    def fragment_ranges(self) -> Iterator[tuple[Fragment, int | None]]:
        """Each fragment with its last entry id; None for the open end of a ledger that is not closed."""
        for fragment, following in zip(self.fragments, self.fragments[1:], strict=False):
            yield fragment, following.first_entry_id - 1
        yield self.fragments[-1], self.last_entry_id if self.closed else None

    def in_recovery(self) -> LedgerMetadata:
        """OPEN → IN_RECOVERY, the first step of ledger recovery."""
        assert not self.closed, "a closed ledger is not recovered"
        return replace(self, state=LedgerState.IN_RECOVERY)

    def close_at(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """OPEN or IN_RECOVERY → CLOSED. Fragments that start after the end are dropped."""
        assert not self.closed, "a closed ledger is not closed again"
        kept = tuple(f for f in self.fragments if f.first_entry_id <= max(last_entry_id, 0))
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length, fragments=kept)

    def with_ensemble(self, first_entry_id: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
        """An ensemble change: a new last fragment, or a new ensemble for one that starts at the same entry."""
        assert not self.closed and first_entry_id >= self.last_fragment.first_entry_id
        kept = tuple(f for f in self.fragments if f.first_entry_id < first_entry_id)
        return replace(self, fragments=(*kept, Fragment(first_entry_id, ensemble)))

    def with_another_copy(self, bookie: str) -> LedgerMetadata:
        """A closed ledger with a copy more: ``bookie`` is in each ensemble."""
        assert self.lacks_copies
        fragments = tuple(Fragment(f.first_entry_id, (*f.ensemble, bookie)) for f in self.fragments)
        copies = self.write_quorum + 1
        return replace(self, fragments=fragments, ensemble_size=copies, write_quorum=copies)

    def re_replicated(self, first_entry_id: int, swap: Mapping[str, str]) -> LedgerMetadata:
        """The fragment at ``first_entry_id``, with some bookies replaced by others that now hold its entries."""
        assert self.closed or first_entry_id != self.last_fragment.first_entry_id, "the writer may still add to it"
        fragments = tuple(
            Fragment(f.first_entry_id, tuple(swap.get(b, b) for b in f.ensemble))
            if f.first_entry_id == first_entry_id
            else f
            for f in self.fragments
        )
        loss = self.accepted_loss
        if loss is not None:
            (last,) = (end for f, end in self.fragment_ranges() if f.first_entry_id == first_entry_id)
            loss = loss.taken_over(first_entry_id, self.last_entry_id if last is None else last, swap)
        return replace(self, fragments=fragments, accepted_loss=loss)


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise InvalidArgumentError unless E ≥ WQ ≥ AQ ≥ 1."""
    chosen = {"ensemble_size": ensemble_size, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    for name, one in chosen.items():
        if type(one) is not int:
            raise InvalidArgumentError(f"{name} {one!r} can't be used; choose a whole number", name)
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgumentError(
            f"ensemble_size {ensemble_size} ≥ write_quorum {write_quorum} ≥ ack_quorum {ack_quorum} ≥ 1 does not hold; "
            "choose for example 3, 3, 2",
            "write_quorum" if write_quorum > ensemble_size else "ack_quorum",
        )
