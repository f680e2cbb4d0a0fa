"""The address of a log and the run that writes it: values that a query passes to its tasks and ledgers.

Law: both values compare by content and can be pickled for Spark's tasks. Their ``repr`` never shows the password. The ledgers of
a run have the log's options, and these labels in their custom metadata, for readers, audits and the collection of orphans:

==========================  =======================================================================================
``bookspark.log``           the name of the log or lane (``orders@3``)
``bookspark.log_id``        the log's id, in decimal
``bookspark.epoch``         the epoch in which the ledger was created, in decimal
``bookspark.role``          ``commit`` or ``data``
``bookspark.run``           the id of the run that created it
``bookspark.encoding``      the encoding of payloads (``rows.encodings``); absent for plain values
``bookspark.write_quorum``  the log's write quorum, if the ledger was made over fewer bookies than that
==========================  =======================================================================================
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError, MetadataStoreError, NotEnoughBookiesError
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, LedgerMetadata, LedgerType
from bookspark.protocol.logs.lanes import LaneId, lane_id, lane_of
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import (
    COMMIT_ROLE,
    ENCODING_LABEL,
    EPOCH_LABEL,
    LOG_ID_LABEL,
    LOG_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    LogRecord,
)

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper, LedgerHandle


log = logging.getLogger(__name__)


def lane_of_ledger(metadata: LedgerMetadata) -> LaneId:
    """The lane for which a ledger was made. Raises BookKeeperError if it is no ledger of a log."""
    labels = metadata.custom_metadata
    number, (name, lane) = labels.get(LOG_ID_LABEL, b""), lane_of(labels.get(LOG_LABEL, b"").decode(errors="replace"))
    if not number.isdigit():
        raise BookKeeperError(f"ledger {metadata.ledger_id} is no ledger of a log: it has no label {LOG_ID_LABEL}")
    return LaneId(int(number), lane, name)


LARGER_MS = 2000
"""Interval of a writer's looks for a larger ledger, while its own is over fewer bookies than wanted."""
CLOSE_SECONDS_MAX = 30.0
"""Time limit of closing a ledger before it is left for recovery; a guaranteed ledger would retry for ever."""


@dataclass
class LargerLook:
    """The time of a writer's next look for a larger ledger than its open one, in ms by a clock of the caller.

    Law: looks for which the writer waits take a tenth of its time at most, also if the metadata store does not answer."""

    due_ms: float = math.inf
    """Infinite if the open ledger has the wanted size."""
    begun_ms: int = 0

    def opened(self, ledger: LedgerHandle, options: LogOptions, now_ms: int) -> None:
        """The writer goes on in ``ledger``."""
        small = ledger.metadata.ensemble_size < options.ensemble_size
        self.due_ms = now_ms + LARGER_MS if small else math.inf

    def is_due(self, now_ms: int) -> bool:
        """Is a look due? Then the next one is due LARGER_MS later."""
        if now_ms < self.due_ms:
            return False
        self.due_ms, self.begun_ms = now_ms + LARGER_MS, now_ms
        return True

    def is_over(self, now_ms: int) -> None:
        """The writer has waited for the look until now."""
        self.due_ms = max(self.due_ms, now_ms + 9 * (now_ms - self.begun_ms))


@dataclass(frozen=True)
class LogAddress:
    """Address of a log: its cluster, its name and its password."""

    zookeeper: str
    """The cluster: ``host:port[,host:port…][/chroot]``."""
    name: str
    password: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class LogRun:
    """One run of a query, or one batch write: a writer of a log in one epoch."""

    address: LogAddress
    lane: LaneId
    run: str
    """Id of the run: Spark's, or a random one."""
    epoch: int

    @classmethod
    def of(cls, address: LogAddress, record: LogRecord) -> LogRun:
        """The owner in ``record``, the record of a lane of the log at ``address``."""
        return cls(address, lane_id(record), record.owner, record.epoch)

    @classmethod
    def of_batch_write(cls, address: LogAddress, record: LogRecord, run: str) -> LogRun:
        """The batch write ``run``, an active one in ``record``."""
        write = record.batch_write(run)
        assert write is not None
        return cls(address, lane_id(record), run, write.epoch)

    @property
    def password(self) -> bytes:
        return self.address.password

    @property
    def labels(self) -> dict[str, bytes]:
        """The labels of each ledger of the lane that is made in this epoch."""
        return {
            LOG_LABEL: str(self.lane).encode(),
            LOG_ID_LABEL: str(self.lane.log).encode(),
            EPOCH_LABEL: str(self.epoch).encode(),
        }

    def create_ledger(
        self,
        bookkeeper: BookKeeper,
        options: LogOptions,
        role: str,
        encoding: str = "",
        sizes: Iterable[tuple[int, int]] | None = None,
    ) -> LedgerHandle:
        """Create a labelled ledger with the log's ``options``.

        ``role``: COMMIT_ROLE or DATA_ROLE; a commit ledger always acknowledges after the sync (PD_JOURNAL). ``encoding``: of a
        data ledger's payloads. ``sizes``: the ensemble sizes and write quorums to try in turn; None: ``LogOptions.sizes``, so
        over fewer bookies if there are no more. Raises NotEnoughBookiesError and MetadataStoreError.
        """
        labels = {**self.labels, ROLE_LABEL: role.encode(), RUN_LABEL: self.run.encode()}
        if encoding:
            labels[ENCODING_LABEL] = encoding.encode()
        first: NotEnoughBookiesError | None = None
        for ensemble_size, write_quorum in sizes or options.sizes():
            few = write_quorum < options.write_quorum
            wanted = {WRITE_QUORUM_LABEL: str(options.write_quorum).encode()} if few else {}
            try:
                ledger = bookkeeper.create_ledger(
                    ensemble_size=ensemble_size,
                    write_quorum=write_quorum,
                    ack_quorum=options.ack_quorum,
                    digest_type=options.digest_type,
                    password=self.password,
                    custom_metadata=labels | wanted,
                    ledger_type=LedgerType.PD_JOURNAL if role == COMMIT_ROLE else options.ledger_type,
                    replication=options.replication,
                )
            except NotEnoughBookiesError as error:
                first = first or error
                continue
            if first is not None:
                log.warning(
                    "log %s: ledger %d has %d bookies, and %d copies of each entry: %s",
                    self.lane,
                    ledger.ledger_id,
                    ensemble_size,
                    write_quorum,
                    first,
                )
            return ledger
        assert first is not None
        raise first

    def larger_ledger(
        self, bookkeeper: BookKeeper, options: LogOptions, ledger: LedgerHandle, role: str, encoding: str = ""
    ) -> LedgerHandle | None:
        """A ledger over more bookies than ``ledger``, an open one, to go on in instead. None if placement has no larger ensemble
        now, or the metadata store does not answer: the open ledger does without it. Callers ask when a ``LargerLook`` is due."""
        with suppress(NotEnoughBookiesError, MetadataStoreError):
            size = options.larger_than(ledger.metadata.ensemble_size, bookkeeper.context.possible_ensemble_size)
            if size is not None:
                return self.create_ledger(bookkeeper, options, role, encoding, [size])
        return None
