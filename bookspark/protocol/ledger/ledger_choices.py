"""A creator's choices for a ledger (quorums, ``ledger_type``, ``replication``): contradictions are refused, risks warned of.

Law: contradictory or meaningless choices are refused before anything is made, with the reason. Risky choices are allowed, with a
warning. ``docs/durability.md`` explains the promise of each choice to users.
"""

from __future__ import annotations

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication, check_quorums

STRIPED_ENSEMBLE_MAX = 1023
"""The largest ensemble of a striped VD ledger (volatile durability): each request carries the bookie's stripe, in numbers of ten
bits."""


def check_choices(
    ensemble_size: int, write_quorum: int, ack_quorum: int, ledger_type: LedgerType, replication: Replication
) -> None:
    """Raise a ConfigurationError for choices that contradict each other."""
    check_quorums(ensemble_size, write_quorum, ack_quorum)
    if replication is Replication.GUARANTEED and write_quorum == 1:
        raise ConfigurationError(
            "replication 'guaranteed' promises write_quorum copies of each entry of a closed ledger, and with write_quorum 1 "
            "that is what ack_quorum 1 promises already; choose a write_quorum of 2 or more, or leave replication out"
        )
    if ledger_type is LedgerType.VD_JOURNAL and ensemble_size > max(write_quorum, STRIPED_ENSEMBLE_MAX):
        raise ConfigurationError(
            f"a VD_JOURNAL ledger is striped over at most {STRIPED_ENSEMBLE_MAX} bookies, not {ensemble_size}; choose a smaller "
            "ensemble_size, or PD_JOURNAL"
        )


def check_digest(digest_type: DigestType, ledger_type: LedgerType, replication: Replication) -> None:
    """Raise a ConfigurationError for choices that BookKeeper's own clients, which may write the ledger, don't support."""
    if digest_type.bookkeepers and (ledger_type, replication) != (LedgerType.PD_JOURNAL, Replication.BEST_EFFORT):
        raise ConfigurationError(
            f"digest_type {digest_type.value} is for ledgers that BookKeeper's own clients read and write, and they know neither "
            f"{LedgerType.VD_JOURNAL.value} nor replication {Replication.GUARANTEED.value!r}; leave these out, or choose "
            f"{DigestType.CRC32C.value}"
        )


def risk_of(ack_quorum: int, ledger_type: LedgerType, without_journal: int) -> str:
    """The warning for a risky choice, else "". ``without_journal``: bookies of the ensemble that acknowledge before they sync."""
    if ack_quorum > 1 or not without_journal or ledger_type is LedgerType.VD_JOURNAL:
        return ""
    return (
        f"ack_quorum 1, and {without_journal} of its bookies run without a journal: an acknowledged entry may be in the memory "
        "of one host only, and after a crash there nobody can tell whether it existed, so that the ledger waits for an operator "
        "(bookspark ledger recover --accept-loss); choose an ack_quorum of 2 or more, or VD_JOURNAL and sync()"
    )
