"""Quorum arithmetic against simple twins that enumerate ack quorums instead of counting."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.protocol.ledger.quorum import (
    Verdict,
    covered,
    fencing_verdict,
    quorum_coverage,
    read_verdict,
    recovery_read_verdict,
    write_set,
)
from tests.protocol.ledgers import metadata

QUORUMS = [(e, wq, aq) for e in range(1, 7) for wq in range(1, e + 1) for aq in range(1, wq + 1)]


def subsets(items):
    items = list(items)
    return (set(chosen) for size in range(len(items) + 1) for chosen in combinations(items, size))


def ack_quorums(ensemble_size, write_quorum, ack_quorum):
    """Every set of bookies that could have acknowledged an entry, by enumeration."""
    for entry_id in range(ensemble_size):
        members = []
        position = entry_id
        while len(members) < write_quorum:
            members.append(position % ensemble_size)
            position += 1
        yield from (set(acks) for acks in combinations(members, ack_quorum))


@pytest.mark.parametrize(("e", "wq", "aq"), QUORUMS)
def test_covered_means_that_every_ack_quorum_has_a_member(e, wq, aq):
    quorums = list(ack_quorums(e, wq, aq))
    for positives in subsets(range(e)):
        assert covered(e, wq, aq, positives) == all(quorum & positives for quorum in quorums)


@pytest.mark.parametrize(("e", "wq", "aq"), QUORUMS)
def test_fencing_verdict_comes_as_early_as_possible(e, wq, aq):
    quorums = list(ack_quorums(e, wq, aq))
    for positives in subsets(range(e)):
        for unknowns in subsets(set(range(e)) - positives):
            open_answers = set(range(e)) - positives - unknowns
            best = all(quorum & (positives | open_answers) for quorum in quorums)
            now = all(quorum & positives for quorum in quorums)
            expected = Verdict.PRESENT if now else Verdict.PENDING if best else Verdict.UNKNOWN
            assert fencing_verdict(e, wq, aq, positives, unknowns) is expected


@pytest.mark.parametrize(("e", "wq", "aq"), [q for q in QUORUMS if q[0] == q[1]])
def test_coverage_of_unstriped_ledgers_is_ec(e, wq, aq):
    assert (
        e - aq + 1  # EC in BP-46
        == quorum_coverage(wq, aq)
        == min(
            size for size in range(e + 1) if all(covered(e, wq, aq, s) for s in map(set, combinations(range(e), size)))
        )
    )


@pytest.mark.parametrize(("e", "wq", "aq"), QUORUMS)
def test_recovery_read_reports_absent_only_if_no_ack_quorum_can_hold_the_entry(e, wq, aq):
    for answers in product("+-?.", repeat=wq):  # positive, negative, unknown, pending
        positives, negatives, unknowns = (answers.count(c) for c in "+-?")
        verdict = recovery_read_verdict(wq, aq, positives, negatives, unknowns)
        may_hold = {i for i, answer in enumerate(answers) if answer != "-"}
        acked_somewhere = any(set(quorum) <= may_hold for quorum in combinations(range(wq), aq))
        if verdict is Verdict.ABSENT:
            assert not acked_somewhere
        if not acked_somewhere and not positives:
            assert verdict is Verdict.ABSENT
        if positives:
            assert verdict is Verdict.PRESENT
        assert (verdict is Verdict.PENDING) == (not positives and acked_somewhere and "." in answers)


def test_recovery_read_with_the_threshold_of_bp_46():
    assert recovery_read_verdict(3, 2, 1, 0, 1, positives_needed=2) is Verdict.PENDING
    assert recovery_read_verdict(3, 2, 2, 0, 0, positives_needed=2) is Verdict.PRESENT
    assert recovery_read_verdict(3, 2, 1, 1, 1, positives_needed=2) is Verdict.UNKNOWN


@pytest.mark.parametrize("wq", range(1, 7))
def test_ordinary_read_reports_absent_only_if_all_bookies_deny(wq):
    for positives, negatives, unknowns in product(range(wq + 1), repeat=3):
        if positives + negatives + unknowns > wq:
            continue
        verdict = read_verdict(wq, positives, negatives, unknowns)
        assert (verdict is Verdict.ABSENT) == (negatives == wq)
        assert (verdict is Verdict.PRESENT) == (positives > 0)
        if verdict is Verdict.UNKNOWN:
            assert negatives + unknowns == wq
            assert unknowns > 0


def test_write_sets_equal_those_of_the_overview():
    """bookkeeper-overview, "Write quorums": E 4, WQ 3, six entries."""
    names = {0: "B1 B2 B3", 1: "B2 B3 B4", 2: "B3 B4 B1", 3: "B4 B1 B2", 4: "B1 B2 B3", 5: "B2 B3 B4"}
    for entry_id, expected in names.items():
        assert " ".join(f"B{position + 1}" for position in write_set(entry_id, 4, 3)) == expected


@pytest.mark.parametrize("ensemble", [("b1", "b2"), ("b1", "b2", "b2"), ("b1", "b2", "b3", "b4")])
def test_metadata_with_duplicate_or_wrong_number_of_bookies_is_refused(ensemble):
    with pytest.raises(ConfigurationError, match="has not 3 distinct bookies"):
        metadata(fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(4, ensemble)))
