"""One ledger on one bookie: admitted adds, the effect of a fence, and the answer for an absent entry.

Law: a fence holds for ever and against everyone but a recoverer; a request with a wrong password changes nothing; absence is
Negative only where nothing was lost, and Unknown everywhere else. State goes one way only::

    unknown ──add or fence──► open ──fence──► fenced        (master key set at the first contact; ``key_meeting`` for another key)
    whole ──lossy boot──► limbo ──repaired──► whole         (each lossy boot has a number, and a repair ends its own only)
    LAC, LAFR: never go back
    a copy of an entry: held ──found unreadable──► lost, for ever; another copy may be added

A decision names the control records to sync before the answer goes out. The caller writes them, and hands them to ``replay`` at
boot. An add's own LAC and LAFR (last add fully replicated) are replayed from its entry batch.

A bookie's LAC (last add confirmed) is the highest from its writer: in a row, in a request header, or explicit. Fencing freezes
it: a recoverer's adds carry the LAC of the fencing phase (docs/decisions/traps.md, trap 1).

An unreadable copy is *lost*, and ``EntriesLost`` names it. No record says that an entry is back: an entry added again is held, so
its absence is never asked for. No location is used twice, so an older checkpoint or log never brings the lost copy back.

Source: BookKeeper's ``LedgerDescriptorImpl`` and ``HandleFactoryImpl``; #4462 (a fenced ledger is not made anew by its old
writer's add; ``garbage_collection``); TLA+ actions ``BookieSendsAddConfirmedResponse``, ``BookieSendsAddFencedResponse``; BP-46,
"Protection Mechanism", for limbo (``bookie_boot``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, first_within, with_ranges, without_ranges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import (
    FENCED,
    UNAUTHORIZED,
    Negative,
    NegativeReason,
    Positive,
    Response,
    Unknown,
    UnknownReason,
)


class MasterKeyNoted(NamedTuple):
    """The first contact with a ledger fixed its master key."""

    ledger_id: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"MasterKeyNoted(ledger_id={self.ledger_id})"


class KeyDecided(NamedTuple):
    """The metadata decided for this master key (``key_meeting``). In each control log the ledger's earlier records are void, and
    so are entries with another key. ``number``: the bookie's decisions, counted."""

    ledger_id: int
    number: int
    master_key: bytes

    def __repr__(self) -> str:
        return f"KeyDecided(ledger_id={self.ledger_id}, number={self.number})"


class FenceNoted(NamedTuple):
    """The ledger is fenced."""

    ledger_id: int


class LastAddConfirmedNoted(NamedTuple):
    """An explicit LAC: no entry carries it."""

    ledger_id: int
    last_add_confirmed: int


class LimboNoted(NamedTuple):
    """Entries of the ledger may be lost since lossy boot number ``boot``."""

    ledger_id: int
    boot: int


class LimboCleared(NamedTuple):
    """The entries lost by lossy boot ``boot``, or one before it, are back."""

    ledger_id: int
    boot: int


class FenceUnsureNoted(NamedTuple):
    """The ledger was made anew at or below the lossy-boot mark: an earlier fence may be lost."""

    ledger_id: int


NO_COPY = -1
"""The ``where`` of lost entries without any copy that could be read again."""


class EntriesLost(NamedTuple):
    """The copy of ``first..last`` at location ``where`` is unreadable, or gone (``NO_COPY``)."""

    ledger_id: int
    first: int
    last: int
    where: int = NO_COPY


ControlRecord = (
    MasterKeyNoted
    | KeyDecided
    | FenceNoted
    | LastAddConfirmedNoted
    | LimboNoted
    | LimboCleared
    | FenceUnsureNoted
    | EntriesLost
)


class Decision(NamedTuple):
    """An answer, and the records to sync before it goes out."""

    response: Response
    records: tuple[ControlRecord, ...] = ()
    ask_metadata: bool = False
    """The answer is provisional: read the ledger's metadata, call ``bookie_boot.answer_unsure``, and decide again."""
    recovery: bool = False
    """An add of a recoverer, which a fence does not stop."""
    keys_meet: bool = False
    """The answer is provisional: the ledger's metadata decides between two master keys (``key_meeting``)."""


_DONE = Decision(Positive())
_DONE_RECOVERY = Decision(Positive(), recovery=True)
_REFUSED_FENCED = Decision(FENCED)
KEYS_MEET = Decision(UNAUTHORIZED, keys_meet=True)

NO_SUCH_LEDGER = Negative(NegativeReason.NO_SUCH_LEDGER)
NO_SUCH_ENTRY = Negative(NegativeReason.NO_SUCH_ENTRY)
STORAGE_DAMAGED = Unknown(UnknownReason.IO_ERROR, "storage is damaged, so an absent entry proves nothing")
LOST_AT_BOOT = Unknown(UnknownReason.LOST, "the entry may be among what a lossy boot had lost, which is not healed yet")
ENTRY_LOST = Unknown(UnknownReason.LOST, "the copy of the entry can't be read any more")
ENTRY_AWAY = Unknown(
    UnknownReason.IO_ERROR, "the copy of the entry is in a directory that failed; the next start may find it readable"
)
IN_LIMBO = Unknown(UnknownReason.LIMBO)
FENCE_UNSURE = Unknown(UnknownReason.LIMBO, "a fence may have been lost, the ledger's metadata has to be read first")
_ASK_METADATA = Decision(FENCE_UNSURE, ask_metadata=True)


@dataclass(slots=True)
class BookieLedger:
    """A ledger unknown to the bookie has none."""

    ledger_id: int
    master_key: bytes | None = field(default=None, repr=False)
    fenced: bool = False
    last_add_confirmed: int = NO_ENTRY
    last_add_fully_replicated: int = NO_ENTRY
    explicit_last_add_confirmed: int = NO_ENTRY
    """The highest LAC without an entry: only the control log has it."""
    lost: EntryRanges = NO_RANGES
    """Entries whose copy was lost here; listed until ``entries_back``."""
    away: EntryRanges = NO_RANGES
    """Entries whose copy is in a directory no longer used by this process. They have no record, and are not lost for good: at the
    next start the directory is readable, or the boot is lossy."""
    limbo_boot: int = 0
    """The last lossy boot that may have lost entries of the ledger; 0: none."""
    limbo_cleared_boot: int = 0
    """The last lossy boot whose losses are back; 0: none."""
    fence_unsure: bool = False
    """An earlier fence may be lost, so the writer's adds wait for the metadata (``bookie_boot``)."""
    decided: int = 0
    """``KeyDecided.number`` of the last decision between two master keys; 0: none."""
    stopped: bool = False
    """The metadata named another key than the kept one, and is read once more: requests wait. Never recorded."""

    @property
    def limbo(self) -> bool:
        """Entries may be lost: absence proves nothing until the ledger is repaired."""
        return self.limbo_boot > self.limbo_cleared_boot

    def keys_meet(self, master_key: bytes) -> bool:
        """Does a request with this key have to wait for the metadata (``key_meeting``)?"""
        return (master_key != self.master_key and self.master_key is not None) or self.stopped

    def decided_for(self, master_key: bytes, number: int) -> BookieLedger:
        """The ledger after the metadata decided for another key than the kept one: without the other key's entries, fence and
        LAC. The limbo stays, as only lossy boots make it. An earlier fence of the rightful key may be lost, so the fence is
        unsure."""
        return BookieLedger(
            self.ledger_id,
            master_key,
            limbo_boot=self.limbo_boot,
            limbo_cleared_boot=self.limbo_cleared_boot,
            fence_unsure=True,
            decided=number,
        )

    def admit_add(self, master_key: bytes, recovery: bool) -> Decision:
        """May these entries be added? Changes nothing: ``added`` follows once the batch is stored, so an add refused for another
        reason (a conflict, a full disk) leaves no trace."""
        kept = self.master_key
        if (master_key != kept and kept is not None) or self.stopped:
            return KEYS_MEET
        if self.fenced and not recovery:
            return _REFUSED_FENCED
        if self.fence_unsure and not recovery:
            return _ASK_METADATA
        if kept is None:
            return Decision(Positive(), self._first_contact(master_key), recovery=recovery)
        return _DONE_RECOVERY if recovery else _DONE

    def admit_sync(self, master_key: bytes) -> Decision:
        """May the writer of a VD ledger (volatile durability) sync it and see its sync cursor? Asked when the request comes, and
        again after the sync. After a fence the old writer must see no cursor: it covers recovery's entries, and the writer would
        confirm an entry after the ledger's end."""
        if self.keys_meet(master_key):
            return KEYS_MEET
        if self.fenced:
            return _REFUSED_FENCED
        return Decision(FENCE_UNSURE) if self.fence_unsure else _DONE

    def added(self, decision: Decision, last_add_confirmed: int, last_add_fully_replicated: int) -> bool:
        """Take over a stored add. True if the LAC (last add confirmed) went up.

        Raises ValueError, and changes nothing, if ``decision`` was no admission, or if a fence came after it.
        """
        if type(decision.response) is not Positive:
            raise ValueError(f"ledger {self.ledger_id}: an add was taken that was not admitted ({decision.response})")
        if self.fenced and not decision.recovery:
            raise ValueError(f"ledger {self.ledger_id}: an add was taken that was admitted before the fence")
        for record in decision.records:
            self.replay(record)
        return self.note(last_add_confirmed, last_add_fully_replicated)

    def note(self, last_add_confirmed: int, last_add_fully_replicated: int) -> bool:
        """Take over the LAC and LAFR of an add. True if the LAC went up."""
        if last_add_fully_replicated > self.last_add_fully_replicated:
            self.last_add_fully_replicated = last_add_fully_replicated
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            return True
        return False

    def fence(self, master_key: bytes) -> Decision:
        """Fence, for a recoverer with the password."""
        records: tuple[ControlRecord, ...] = ()
        if self.keys_meet(master_key):
            return KEYS_MEET
        if self.master_key is None:
            self.master_key = master_key
            records = (MasterKeyNoted(self.ledger_id, master_key),)
        if not self.fenced:
            self.fenced = True
            records += (FenceNoted(self.ledger_id),)
        return Decision(Positive(), records) if records else _DONE

    def write_last_add_confirmed(self, master_key: bytes, last_add_confirmed: int) -> Decision:
        """Take an explicit LAC. The old writer of a fenced ledger is refused."""
        records: tuple[ControlRecord, ...] = ()
        if self.keys_meet(master_key):
            return KEYS_MEET
        if self.fenced:
            return _REFUSED_FENCED
        if self.fence_unsure:
            return Decision(FENCE_UNSURE)
        if self.master_key is None:
            self.master_key = master_key
            records = (MasterKeyNoted(self.ledger_id, master_key),)
        if last_add_confirmed > self.explicit_last_add_confirmed:
            self.explicit_last_add_confirmed = last_add_confirmed
            self.note(last_add_confirmed, NO_ENTRY)
            records += (LastAddConfirmedNoted(self.ledger_id, last_add_confirmed),)
        return Decision(Positive(), records) if records else _DONE

    def replay(self, record: ControlRecord) -> None:
        """Take over a control record at boot, in any order and any number of times.

        Raises ValueError, and changes nothing, for a record of another ledger.
        """
        if record.ledger_id != self.ledger_id:
            raise ValueError(f"a control record of ledger {record.ledger_id} was replayed for ledger {self.ledger_id}")
        if isinstance(record, MasterKeyNoted):
            if not self.decided:
                self.master_key = record.master_key
        elif isinstance(record, KeyDecided):
            if record.number >= self.decided:
                self.decided, self.master_key = record.number, record.master_key
        elif isinstance(record, FenceNoted):
            self.fenced = True
        elif isinstance(record, LastAddConfirmedNoted):
            self.explicit_last_add_confirmed = max(self.explicit_last_add_confirmed, record.last_add_confirmed)
            self.note(record.last_add_confirmed, NO_ENTRY)
        elif isinstance(record, LimboNoted):
            self.limbo_boot = max(self.limbo_boot, record.boot)
        elif isinstance(record, LimboCleared):
            self.limbo_cleared_boot = max(self.limbo_cleared_boot, record.boot)
        elif isinstance(record, EntriesLost):
            self.lose([(record.first, record.last)])
        else:
            self.fence_unsure = True

    def control_records(self) -> tuple[ControlRecord, ...]:
        """The records from which ``replay`` makes this control state again."""
        records: tuple[ControlRecord, ...] = ()
        if self.master_key is not None and self.decided:
            # The first record, as it voids those before it.
            records = (KeyDecided(self.ledger_id, self.decided, self.master_key),)
        elif self.master_key is not None:
            records = (MasterKeyNoted(self.ledger_id, self.master_key),)
        if self.fenced:
            records += (FenceNoted(self.ledger_id),)
        if self.explicit_last_add_confirmed > NO_ENTRY:
            records += (LastAddConfirmedNoted(self.ledger_id, self.explicit_last_add_confirmed),)
        if self.limbo_boot:
            records += (LimboNoted(self.ledger_id, self.limbo_boot),)
        if self.limbo_cleared_boot:
            records += (LimboCleared(self.ledger_id, self.limbo_cleared_boot),)
        if self.fence_unsure:
            records += (FenceUnsureNoted(self.ledger_id),)
        return records + tuple(EntriesLost(self.ledger_id, first, last) for first, last in self.lost)

    def clear_limbo(self, boot: int) -> Decision:
        """End the limbo of lossy boot ``boot``: its lost entries are back and synced. A later lossy boot keeps the limbo.

        Raises ValueError, and changes nothing, for a boot after the ledger's last lossy one: its number would end a limbo still
        to come.
        """
        if 0 < self.limbo_boot < boot:
            raise ValueError(
                f"ledger {self.ledger_id} is in limbo since boot {self.limbo_boot}, and not since boot {boot}"
            )
        record = LimboCleared(self.ledger_id, boot)
        self.replay(record)
        return Decision(Positive(), (record,))

    def lose(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.lost = with_ranges(self.lost, ranges)

    def lose_for_now(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Mark copies as away: their directory is no longer used."""
        self.away = with_ranges(self.away, ranges)

    @property
    def lacking(self) -> EntryRanges:
        """Lost and away entries; listed until ``entries_back``."""
        return with_ranges(self.lost, self.away) if self.away else self.lost

    def entries_back(self, held: Iterable[tuple[int, int]]) -> None:
        """The entries in ``held`` (ascending ranges) are held and durable again."""
        held = list(held)
        self.lost, self.away = without_ranges(self.lost, held), without_ranges(self.away, held)

    def fence_is_sure(self) -> None:
        """The metadata shows that there was no fence to lose. Not recorded: the next boot reads the metadata again."""
        self.fence_unsure = False

    def _first_contact(self, master_key: bytes) -> tuple[ControlRecord, ...]:
        key = MasterKeyNoted(self.ledger_id, master_key)
        return (key, FenceUnsureNoted(self.ledger_id)) if self.fence_unsure else (key,)


def may_read(ledger: BookieLedger | None, master_key: bytes | None) -> bool:
    """May this reader read? Another key than the kept one waits for the metadata (``key_meeting``). A reader without a key may
    read, as in BookKeeper."""
    return master_key is None or ledger is None or not ledger.keys_meet(master_key)


def answer_absent(
    ledger: BookieLedger | None, entry_id: int, *, storage_damaged: bool, boot_unsure: bool = False
) -> Negative | Unknown:
    """The answer to a read of an entry missing in the index. Only this function makes a Negative. ``storage_damaged``:
    unidentified data is unreadable, perhaps only for now. ``boot_unsure``: a lossy boot may have lost the entry
    (``bookie_boot.absence_unsure``); only another bookie's copy brings it back."""
    if storage_damaged:
        return STORAGE_DAMAGED
    if boot_unsure:
        return LOST_AT_BOOT
    if ledger is None:
        return NO_SUCH_LEDGER
    if ledger.limbo:
        return IN_LIMBO
    if first_within(ledger.lost, entry_id, entry_id) is not None:
        return ENTRY_LOST
    return NO_SUCH_ENTRY if first_within(ledger.away, entry_id, entry_id) is None else ENTRY_AWAY


def absence_proven(
    ledger: BookieLedger | None, first: int, last: int, *, storage_damaged: bool, boot_unsure: bool = False
) -> int:
    """The highest id up to which the absence of ``first..last``, all missing in the index, is Negative; ``first - 1`` if there is
    none."""
    if storage_damaged or boot_unsure or (ledger is not None and ledger.limbo):
        return first - 1
    lost = None if ledger is None else first_within(ledger.lacking, first, last)
    return last if lost is None else lost - 1


def answer_last_add_confirmed(ledger: BookieLedger) -> Positive | Unknown:
    """The answer to a read of the LAC, fencing or not. In limbo the LAC may be lost, so the bookie counts towards no coverage."""
    return IN_LIMBO if ledger.limbo else Positive()


def acked_after_sync(*, recovery: bool, volatile: bool, journal_write_data: bool) -> bool:
    """Does the ack of an add wait for the sync? ``volatile``: the add is to a VD ledger (BP-14). Adds of recovery and repair are
    synced before their ack in every mode, and a duplicate waits for the sync of the kept copy (docs/decisions/one-log.md)."""
    return recovery or (journal_write_data and not volatile)


def same_content(kept: tuple[int, bytes | memoryview], added: tuple[int, bytes | memoryview]) -> bool:
    """Are two copies of an entry, each as (length, payload), equal? If so, the second add is a duplicate, else a conflict. LAC
    and digest may differ: a writer that resends an entry sends its newer LAC."""
    return kept == added
