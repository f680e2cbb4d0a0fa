"""What a bookie decides when it boots after it may have lost data, and what it may admit from then on (BP-46).

Law: before a bookie serves again, everything that its lost state had forbidden is forbidden again. After a *lossy* boot entries
or fences may be gone. The bookie does not serve before phase one is done, and stays down if phase one fails. The steps are:

1. the *lossy-boot mark*: the highest ledger id allocated so far, durably;
2. every ledger that is not closed and whose last fragment names the bookie is fenced and put in limbo, durably, and so is every
   ledger whose record can't be decoded;
3. the cookie is stamped.

Why the mark: step 2 covers ledgers that are not closed yet. Take a ledger that was closed, on a disk that was lost after the
close. A late add of its old writer would make the ledger anew, unfenced. With an ack quorum of such bookies the writer would see
its entry confirmed after the ledger's end. So the fence of a ledger at or below the mark that is made anew is *unsure*, whoever
makes it (a copy that repair brings makes it as well). The writer's adds are refused until the metadata, read after the boot, says
OPEN with this bookie in its last fragment. At that moment no recovery had begun, so there was no fence to lose. A fence that
comes while the metadata is read wins, because the add is decided again.

The first boot of a bookie notes a mark as well: a bookie of the same id may have been decommissioned, and its directories
emptied. The old writer of a ledger that names it would find a bookie that never heard of a fence.

A directory that can't be read at a boot, or has no room, hears nothing of that boot. If it is used without the others later, it
counts on from what it knows, so two boots may have one number. What the one directory's history calls healed may be lost in the
other's: when they meet again, all is healed only if each of them says so (``marks_together``). Which of their boots came later
nothing tells: the ledger id in the mark does not, as an older copy of the metadata gives out the same ids once more.

When one directory is lost, the fences of ledgers that the other directories know are unsure as well: the record of a fence may
have come while such a directory was out of use, or had no room.

Source: BP-46, "Protection Mechanism" and "The Full Boot-Up Sequence"; docs/decisions/without-the-journal.md for the mark.
Phase two is ``bookie_healing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """The lossy-boot mark. If there are several, that of the highest ``boot`` holds."""

    boot: int
    highest_ledger_id: int


class HealedNoted(NamedTuple):
    """The entries that lossy boot ``boot``, or one before it, had lost are back. If there are several, the highest holds."""

    boot: int


NO_LOSSY_BOOT = LossyBootNoted(0, -1)

NOT_NAMED = Unknown(UnknownReason.LIMBO, "this bookie lost data, and the ledger's last fragment does not name it")
METADATA_UNKNOWN = Unknown(UnknownReason.LIMBO, "this bookie lost data, and the ledger's metadata could not be read")


class PhaseOne(NamedTuple):
    """The records that have to be durable before the cookie is stamped: ``mark`` first, then ``records``."""

    mark: LossyBootNoted
    records: tuple[ControlRecord, ...]


def is_lossy(*, unclean: bool, directory_lost: bool) -> bool:
    """Is this boot lossy? ``unclean``: the marker of adds that were acked unsynced was found. ``directory_lost``: a directory is
    missing, empty or retired."""
    return unclean or directory_lost


def phase_one(
    bookie: str,
    ledgers: Iterable[LedgerMetadata],
    highest_ledger_id: int,
    before: LossyBootNoted = NO_LOSSY_BOOT,
    unreadable: Iterable[int] = (),
) -> PhaseOne:
    """The records that phase one writes. ``ledgers``: all ledgers of the cluster, read after the crash. ``before``: the mark that
    was found, if there was one. ``unreadable``: ledgers whose records can't be decoded; looked at after ``ledgers``."""
    mark = LossyBootNoted(before.boot + 1, max(highest_ledger_id, before.highest_ledger_id))
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


class MarksTold(NamedTuple):
    """The lossy boots that one directory knows of."""

    mark: LossyBootNoted
    healed: HealedNoted

    @property
    def all_healed(self) -> bool:
        """Is all back that these boots had lost?"""
        return self.mark.boot <= self.healed.boot


class MarksTogether(NamedTuple):
    """What holds for the bookie, and ``not_healed``: which of the directories have boots that are not healed."""

    mark: LossyBootNoted
    healed: HealedNoted
    not_healed: tuple[int, ...]


def marks_together(told: Sequence[MarksTold]) -> MarksTogether:
    """Join what the directories of a bookie tell. If one of them is not healed, no number that another one has counted to ends
    its losses."""
    mark = LossyBootNoted(max(one.mark.boot for one in told), max(one.mark.highest_ledger_id for one in told))
    left = tuple(number for number, one in enumerate(told) if not one.all_healed)
    if not left:
        return MarksTogether(mark, HealedNoted(mark.boot), left)
    healed = max(one.healed for one in told)
    # Above all numbers that any of them has for a limbo or its end.
    return MarksTogether(mark._replace(boot=max(mark.boot, healed.boot) + 1), healed, left)


def mark_above(mark: LossyBootNoted, records: Iterable[object]) -> LossyBootNoted:
    """The mark where records are lost, perhaps a later mark among them. No number that is left, of a limbo, of its end or of a
    healing, is one of a lossy boot that is still to come: it would end what that one loses."""
    numbered = (
        record for record in records if isinstance(record, LossyBootNoted | HealedNoted | LimboNoted | LimboCleared)
    )
    return mark._replace(boot=max([mark.boot, *(record.boot for record in numbered)]))


def in_limbo(records: Iterable[object]) -> set[int]:
    """The ledgers that are in limbo by these control records."""
    since: dict[int, int] = {}
    cleared: dict[int, int] = {}
    for record in records:
        if isinstance(record, LimboNoted):
            since[record.ledger_id] = max(record.boot, since.get(record.ledger_id, 0))
        elif isinstance(record, LimboCleared):
            cleared[record.ledger_id] = max(record.boot, cleared.get(record.ledger_id, 0))
    return {ledger_id for ledger_id, boot in since.items() if boot > cleared.get(ledger_id, 0)}


def first_contact(ledger_id: int, mark: LossyBootNoted, collected: CollectionNoted = NOTHING_COLLECTED) -> BookieLedger:
    """The state of a ledger that the bookie does not know. The bookie may have forgotten the ledger, and its fence, in a lossy
    boot or a garbage collection after the ledger was made."""
    unsure_to = max(mark.highest_ledger_id, collected.highest_ledger_id)
    return BookieLedger(ledger_id, fence_unsure=ledger_id <= unsure_to)


def absence_unsure(ledger_id: int, ledger: BookieLedger | None, mark: LossyBootNoted, healed: HealedNoted) -> bool:
    """May entries of a ledger be lost that its limbo does not tell of? Limbo is for ledgers that were not closed at the lossy
    boot. A closed one may have lost entries too, until everything is healed. ``ledger``: None if nothing is known of it."""
    if mark.boot <= healed.boot or ledger_id > mark.highest_ledger_id:
        return False
    return ledger is None or not (ledger.limbo or ledger.limbo_cleared_boot >= mark.boot)


def first_mark(highest_ledger_id: int, before: LossyBootNoted = NO_LOSSY_BOOT) -> LossyBootNoted | None:
    """The mark that a bookie notes when it has none: at its first boot. ``highest_ledger_id``: no ledger had a higher id.
    Its id may be that of a bookie that was there before, with fences that nobody has any more; so a ledger that was there
    before it is made anew with an unsure fence. Nothing is lost that could be healed, so it is the mark of no lossy boot. None:
    there is nothing to note."""
    return LossyBootNoted(0, highest_ledger_id) if before == NO_LOSSY_BOOT and highest_ledger_id >= 0 else None


def answer_unsure(bookie: str, metadata: LedgerMetadata | None) -> Positive | Unknown:
    """The answer to an add of a ledger whose fence is unsure, by the metadata that was read after the add came (None: there is no
    such ledger any more). Positive: call ``fence_is_sure`` and decide the add again."""
    if metadata is None or metadata.state is not LedgerState.OPEN:
        return FENCED
    return Positive() if bookie in metadata.last_fragment.ensemble else NOT_NAMED
