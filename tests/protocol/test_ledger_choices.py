"""Choices of a ledger's creator: accepted, refused with a reason, or warned about."""

from __future__ import annotations

from itertools import product

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_choices import check_choices, check_digest, risk_of
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication

PD, VD = LedgerType.PD_JOURNAL, LedgerType.VD_JOURNAL
BEST_EFFORT, GUARANTEED = Replication.BEST_EFFORT, Replication.GUARANTEED


@pytest.mark.parametrize(("ledger_type", "replication"), list(product(LedgerType, Replication)))
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (5, 3, 2), (2, 2, 1), (1023, 2, 2)])
def test_sensible_choices_are_accepted(quorums, ledger_type, replication):
    check_choices(*quorums, ledger_type, replication)


def test_single_copy_is_allowed_for_best_effort_vd_ledgers():
    check_choices(1, 1, 1, VD, BEST_EFFORT)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ((3, 4, 2, PD, BEST_EFFORT), "ensemble_size 3 ≥ write_quorum 4"),
        ((3, 1, 1, PD, GUARANTEED), "that is what ack_quorum 1 promises already; choose a write_quorum of 2 or more"),
        (
            (1024, 2, 2, VD, BEST_EFFORT),
            "at most 1023 bookies, not 1024; choose a smaller ensemble_size, or PD_JOURNAL",
        ),
    ],
)
def test_senseless_choices_are_refused_with_the_reason(choices, why):
    with pytest.raises(ConfigurationError, match=why):
        check_choices(*choices)


def test_bookkeeper_digest_is_only_for_ledgers_its_clients_know():
    for digest_type in DigestType:
        check_digest(digest_type, PD, BEST_EFFORT)
    for ledger_type, replication in ((VD, BEST_EFFORT), (PD, GUARANTEED), (VD, GUARANTEED)):
        check_digest(DigestType.CRC32C, ledger_type, replication)
        with pytest.raises(ConfigurationError, match="leave these out"):
            check_digest(DigestType.BOOKKEEPER_CRC32C, ledger_type, replication)


def test_ack_quorum_1_without_a_journal_is_a_risk():
    assert "choose an ack_quorum of 2 or more" in risk_of(1, PD, 1)
    assert risk_of(2, PD, 3) == ""
    assert risk_of(1, PD, 0) == ""
    assert risk_of(1, VD, 3) == "", "it promises nothing before the sync"
