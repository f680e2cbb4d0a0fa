"""Decisions of a bookie that boots after a possible loss of data, and its prohibitions from then on (BP-46).

Law: before a bookie serves again, everything that its lost state had forbidden is forbidden again. After a *lossy* boot entries
or fences may be gone. The bookie does not serve before phase one is done, and stays down if it fails. The steps are:

1. the *lossy-boot mark*: the highest ledger id allocated so far, durably;
2. every ledger that is not closed and whose last fragment names the bookie, and every ledger whose record can't be decoded, is
   fenced and put in limbo, durably;
3. the cookie is stamped.

A ledger at or below the mark that is made anew, by an add or a repair's copy, has an *unsure* fence, because step 2 omits closed
ledgers (docs/decisions/without-the-journal.md). The writer's adds are refused until the metadata, read after the boot, says OPEN
with this bookie in its last fragment. No recovery had begun then, so there was no fence to lose. A fence that comes while the
metadata is read wins, because the add is decided again. The first boot notes a mark as well: an earlier bookie of the same id may
have lost fences. When one directory is lost, fences in the others are unsure too: a fence may have been recorded while they were
absent.

A directory that is unreadable or full at a boot has no record of that boot. Used alone later, it counts on from its own number,
so two boots may share a number, and losses healed in one directory's history may stand in the other's. When they meet again, all
is healed only if each of them says so (``marks_together``).

A lossy boot whose only cause is that directories could not be read is over once all of them are read again, whole: nothing was
lost (``absence_over``).

Source: BP-46, "Protection Mechanism" and "The Full Boot-Up Sequence". Phase two is ``bookie_healing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    ControlRecord,
    FenceNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import FENCED, Positive, Unknown, UnknownReason


class LossyBootNoted(NamedTuple):
    """The lossy-boot mark. The mark of the highest ``boot`` holds. ``absent``: the directories (bit *n* for number *n*) whose
    absence is the only cause of this boot's losses, and of all that were not healed before; 0: there are other causes."""

    boot: int
    highest_ledger_id: int
    absent: int = 0


class HealedNoted(NamedTuple):
    """The entries lost by lossy boot ``boot``, or one before it, are back. The highest number holds."""

    boot: int


NO_LOSSY_BOOT = LossyBootNoted(0, -1)

NOT_NAMED = Unknown(UnknownReason.LIMBO, "this bookie lost data, and the ledger's last fragment does not name it")
METADATA_UNKNOWN = Unknown(UnknownReason.LIMBO, "this bookie lost data, and the ledger's metadata could not be read")


class PhaseOne(NamedTuple):
    """The records to sync before the cookie is stamped: ``mark`` first, then ``records``."""

    mark: LossyBootNoted
    records: tuple[ControlRecord, ...]


def is_lossy(*, unclean: bool, directory_lost: bool) -> bool:
    """Is this boot lossy? ``unclean``: the last process acked unsynced adds and left its marker. ``directory_lost``: a directory
    is missing, empty or retired."""
    return unclean or directory_lost


def phase_one(
    bookie: str,
    ledgers: Iterable[LedgerMetadata],
    highest_ledger_id: int,
    before: LossyBootNoted = NO_LOSSY_BOOT,
    unreadable: Iterable[int] = (),
    *,
    absent: int = 0,
) -> PhaseOne:
    """``ledgers``: all ledgers of the cluster, read after the crash. ``before``: the mark on disk, if there is one.
    ``unreadable``: ledgers whose records can't be decoded, iterated after ``ledgers``. ``absent``: as in the mark
    (``only_absent``)."""
    mark = LossyBootNoted(before.boot + 1, max(highest_ledger_id, before.highest_ledger_id), absent)
    records: list[ControlRecord] = []
    for ledger in ledgers:
        if not ledger.closed and bookie in ledger.last_fragment.ensemble:
            records += (
                MasterKeyNoted(ledger.ledger_id, ledger.master_key),
                FenceNoted(ledger.ledger_id),
                LimboNoted(ledger.ledger_id, mark.boot),
            )
    # Such a ledger may be open and name the bookie.
    for ledger_id in unreadable:
        records += (FenceNoted(ledger_id), LimboNoted(ledger_id, mark.boot))
    return PhaseOne(mark, tuple(records))


def only_absent(absent: int, *, other_causes: bool, before: LossyBootNoted, healed: HealedNoted) -> int:
    """``absent`` of the mark of a lossy boot without the directories ``absent``. ``before``, ``healed``: as known before it."""
    if other_causes:
        return 0
    if before.boot <= healed.boot:
        return absent
    return before.absent | absent if before.absent else 0


def absence_over(mark: LossyBootNoted, healed: HealedNoted, absent: int) -> bool:
    """Is the lossy boot undone, at a boot that is not lossy and lacks the directories ``absent``?"""
    return mark.boot > healed.boot and mark.absent != 0 and not mark.absent & absent


class MarksTold(NamedTuple):
    """The lossy boots in one directory's records."""

    mark: LossyBootNoted
    healed: HealedNoted

    @property
    def all_healed(self) -> bool:
        return self.mark.boot <= self.healed.boot


class MarksTogether(NamedTuple):
    """The marks of the bookie, and ``not_healed``: the directories with boots that are not healed, by number."""

    mark: LossyBootNoted
    healed: HealedNoted
    not_healed: tuple[int, ...]


def marks_together(told: Sequence[MarksTold]) -> MarksTogether:
    """Join the marks of a bookie's directories. While one directory is not healed, no number of another ends its losses."""
    left = tuple(number for number, one in enumerate(told) if not one.all_healed)
    causes = [told[number].mark.absent for number in left]
    absent = reduce(or_, causes, 0) if all(causes) else 0
    highest = max(one.mark.highest_ledger_id for one in told)
    mark = LossyBootNoted(max(one.mark.boot for one in told), highest, absent)
    if not left:
        return MarksTogether(mark, HealedNoted(mark.boot), left)
    healed = max(one.healed for one in told)
    # Higher than every boot number in a directory's limbo records.
    return MarksTogether(mark._replace(boot=max(mark.boot, healed.boot) + 1), healed, left)


def mark_above(mark: LossyBootNoted, records: Iterable[object]) -> LossyBootNoted:
    """The mark where records, perhaps a later mark, are lost. It is at least as high as each remaining number of a limbo, its end
    or a healing: otherwise an old number would end the limbo of a boot still to come."""
    numbered = (
        record for record in records if isinstance(record, LossyBootNoted | HealedNoted | LimboNoted | LimboCleared)
    )
    return mark._replace(boot=max([mark.boot, *(record.boot for record in numbered)]))


def in_limbo(records: Iterable[object]) -> set[int]:
    since: dict[int, int] = {}
    cleared: dict[int, int] = {}
    for record in records:
        if isinstance(record, LimboNoted):
            since[record.ledger_id] = max(record.boot, since.get(record.ledger_id, 0))
        elif isinstance(record, LimboCleared):
            cleared[record.ledger_id] = max(record.boot, cleared.get(record.ledger_id, 0))
    return {ledger_id for ledger_id, boot in since.items() if boot > cleared.get(ledger_id, 0)}


def first_contact(ledger_id: int, mark: LossyBootNoted, collected: CollectionNoted = NOTHING_COLLECTED) -> BookieLedger:
    """The state of an unknown ledger. A lossy boot or a garbage collection may have removed it together with its fence."""
    unsure_to = max(mark.highest_ledger_id, collected.highest_ledger_id)
    return BookieLedger(ledger_id, fence_unsure=ledger_id <= unsure_to)


def absence_unsure(ledger_id: int, ledger: BookieLedger | None, mark: LossyBootNoted, healed: HealedNoted) -> bool:
    """May a ledger have lost entries without being in limbo? Ledgers closed at the lossy boot are not in limbo, and may have lost
    entries until everything is healed. ``ledger``: None if the bookie has no state of it."""
    if mark.boot <= healed.boot or ledger_id > mark.highest_ledger_id:
        return False
    return ledger is None or not (ledger.limbo or ledger.limbo_cleared_boot >= mark.boot)


def first_mark(highest_ledger_id: int, before: LossyBootNoted = NO_LOSSY_BOOT) -> LossyBootNoted | None:
    """The mark of a bookie's first boot; None if there is nothing to note. ``highest_ledger_id``: no ledger has a higher id.
    Fences of an earlier bookie of the same id are gone, so ledgers up to this id start with an unsure fence. Boot 0: no lossy
    boot, because nothing lost could be healed."""
    return LossyBootNoted(0, highest_ledger_id) if before == NO_LOSSY_BOOT and highest_ledger_id >= 0 else None


def answer_unsure(bookie: str, metadata: LedgerMetadata | None) -> Positive | Unknown:
    """The answer to an add of a ledger with an unsure fence. ``metadata``: read after the add came; None: no such ledger.
    Positive: call ``fence_is_sure`` and decide the add again."""
    if metadata is None or metadata.state is not LedgerState.OPEN:
        return FENCED
    return Positive() if bookie in metadata.last_fragment.ensemble else NOT_NAMED
