"""Quorum arithmetic: write sets, and verdicts over answers. Pure functions, nothing else.

E is the ensemble size, WQ the write quorum, AQ the ack quorum, LAC the last add confirmed.

Law: each verdict is reached as soon as no further answer can change it. *Absent* follows from explicit negatives only. Each
function has a deliberately simple twin in ``tests/protocol/test_quorum.py``; the test compares both for all E ≤ 6.

Sources: bookkeeper-overview ("Write quorums", "Ack Quorums"); BP-46, "A note on Quorums";
docs/decisions/three-valued-answers.md for coverage over real write sets and for the threshold of 1 in recovery reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum


class Verdict(Enum):
    """Conclusion from a set of answers. PENDING: answers still to come can decide it."""

    PENDING = "pending"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Ensemble positions of the bookies for ``entry_id``: WQ of them, from ``entry_id mod E`` on, round robin."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def write_sets(ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Every distinct write set of an ensemble: one if E = WQ, else E windows."""
    starts = range(ensemble_size if ensemble_size > write_quorum else 1)
    return [write_set(start, ensemble_size, write_quorum) for start in starts]


def quorum_coverage(write_quorum: int, ack_quorum: int) -> int:
    """QC: the number of bookies of a write set that leaves no ack quorum among the rest."""
    return write_quorum - ack_quorum + 1


def covered(ensemble_size: int, write_quorum: int, ack_quorum: int, positives: Collection[int]) -> bool:
    """Are fewer than an ack quorum of bookies outside ``positives`` (ensemble positions), in every write set?

    Fencing needs this: unfenced bookies alone can't acknowledge an entry any more. If E = WQ, any E − AQ + 1 bookies are enough
    (the ensemble coverage EC of BP-46); a striped ledger may need others.
    """
    return all(
        sum(position not in positives for position in window) < ack_quorum
        for window in write_sets(ensemble_size, write_quorum)
    )


def fencing_verdict(
    ensemble_size: int, write_quorum: int, ack_quorum: int, positives: Collection[int], unknowns: Collection[int]
) -> Verdict:
    """PRESENT once covered; UNKNOWN once the positions in ``unknowns`` make coverage impossible. An answer to a fencing request
    is never Negative."""
    if covered(ensemble_size, write_quorum, ack_quorum, positives):
        return Verdict.PRESENT
    possible = set(range(ensemble_size)) - set(unknowns)
    return Verdict.PENDING if covered(ensemble_size, write_quorum, ack_quorum, possible) else Verdict.UNKNOWN


def recovery_read_verdict(
    write_quorum: int, ack_quorum: int, positives: int, negatives: int, unknowns: int, positives_needed: int = 1
) -> Verdict:
    """May an entry be recovered, or does the ledger end before it?

    PRESENT at ``positives_needed`` (1, as BookKeeper ships; AQ in the text of BP-46), ABSENT at QC negatives, UNKNOWN only when
    all WQ have answered and neither holds.
    """
    if positives >= positives_needed:
        return Verdict.PRESENT
    if negatives >= quorum_coverage(write_quorum, ack_quorum):
        return Verdict.ABSENT
    return Verdict.PENDING if positives + negatives + unknowns < write_quorum else Verdict.UNKNOWN


def last_add_confirmed_of(write_quorum: int, ack_quorum: int, last_adds_synced: Sequence[int]) -> int:
    """The LAC of a VD ledger, from each ensemble position's LastAddSynced (BP-14, "LAC Advance Protocol").

    For one write set it is the AQ-th largest, which is the maximum of the first WQ − AQ + 1 in ascending order. For a striped
    ledger it is the minimum over the write sets.
    """
    return min(
        sorted((last_adds_synced[position] for position in window), reverse=True)[ack_quorum - 1]
        for window in write_sets(len(last_adds_synced), write_quorum)
    )


def read_verdict(write_quorum: int, positives: int, negatives: int, unknowns: int) -> Verdict:
    """An ordinary read: PRESENT at the first positive, ABSENT only after WQ negatives (BP-46, "Read entry")."""
    if positives:
        return Verdict.PRESENT
    if negatives == write_quorum:
        return Verdict.ABSENT
    return Verdict.PENDING if negatives + unknowns < write_quorum else Verdict.UNKNOWN
