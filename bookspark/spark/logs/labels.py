"""Labels in the custom metadata of a log's ledgers: what audits and the collection of orphans go by."""

from __future__ import annotations

from bookspark.protocol.log_record import EPOCH_LABEL, LOG_LABEL, ROLE_LABEL, RUN_LABEL


def labels(log: str, epoch: int, run: str, role: str) -> dict[str, bytes]:
    """The custom metadata of a ledger that ``run`` creates for ``log``."""
    return {
        LOG_LABEL: log.encode(),
        EPOCH_LABEL: str(epoch).encode(),
        ROLE_LABEL: role.encode(),
        RUN_LABEL: run.encode(),
    }
