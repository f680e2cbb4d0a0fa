"""Ledgers of a log: made with its options, labelled in their custom metadata with what readers, audits and the collection of
orphans go by. Law: a commit ledger is always PD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.logs.log_record import (
    COMMIT_ROLE,
    ENCODING_LABEL,
    EPOCH_LABEL,
    LOG_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    LogOptions,
)

if TYPE_CHECKING:
    from bookspark.client import BookKeeper, LedgerHandle


def labels(log: str, epoch: int, run: str, role: str, encoding: str = "") -> dict[str, bytes]:
    """The custom metadata of a ledger that ``run`` creates for ``log``. ``encoding``: of its payloads (see ``rows``)."""
    found = {
        LOG_LABEL: log.encode(),
        EPOCH_LABEL: str(epoch).encode(),
        ROLE_LABEL: role.encode(),
        RUN_LABEL: run.encode(),
    }
    return found | {ENCODING_LABEL: encoding.encode()} if encoding else found


def create_labelled(
    bookkeeper: BookKeeper, options: LogOptions, password: bytes, labels: dict[str, bytes]
) -> LedgerHandle:
    """A new ledger of the log with these ``options``."""
    commits = labels[ROLE_LABEL] == COMMIT_ROLE.encode()
    return bookkeeper.create_ledger(
        ensemble_size=options.ensemble_size,
        write_quorum=options.write_quorum,
        ack_quorum=options.ack_quorum,
        digest_type=options.digest_type,
        password=password,
        custom_metadata=labels,
        ledger_type=LedgerType.PD_JOURNAL if commits else options.ledger_type,
        replication=options.replication,
    )
