"""A log, for services and scripts without Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from bookspark.errors import ConfigurationError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import LaneName, LogName, LogRegistry, check_password
from bookspark.logs.producer import Producer
from bookspark.logs.readers.lag import lag_figures
from bookspark.logs.row_reader import RowReader
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.lanes import MARK, LaneId, lane_id
from bookspark.protocol.logs.log_options import Compression, LogOptions
from bookspark.store.client import BookKeeper
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Password, Rule, checked, checks_methods
from bookspark.support.extras import extra_needed
from bookspark.support.metrics.tables import LOG_READERS

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Start = Annotated[str, Rule("'earliest' or 'latest'", ("earliest", "latest").__contains__)]


@checks_methods
class Log:
    """A log, opened by ``open_log``. Thread-safe; it holds no open ledger.

    It stays the log that was opened: if that is deleted and another log gets its name, its calls raise LogRecreatedError.
    """

    def __init__(self, bookkeeper: BookKeeper, address: LogAddress, lane: LaneId) -> None:
        self._bookkeeper, self._address, self._lane = bookkeeper, address, lane

    @property
    def name(self) -> str:
        return self._address.name

    @property
    def id(self) -> int:
        """The log's id, which no other log ever gets."""
        return self._lane.log

    def producer(self, name: LogName) -> Producer:
        """The producer ``name`` of this log, in one process at a time: ends the previous producer of this name, and continues
        after its last row.

        ``name``: of the form of a log's name, the same over restarts of the service. Raises TooManyLanesError, ConfigurationError
        (a log of several columns, or one lane of a log), NoSuchLogError, LedgerRecoveryError, NotEnoughBookiesError and
        MetadataStoreError.
        """
        if MARK in self._address.name:
            raise ConfigurationError(
                f"{self._address.name!r} is one lane of a log, and each producer has a lane of its own: open the log by its name"
            )
        return Producer(self._bookkeeper, self._address, name, self._lane)

    def reader(self, start: Start = "earliest", group: LogName | None = None, *, share: bool = False) -> RowReader:
        """A reader of all lanes, or of one lane if the log was opened as ``orders@3``.

        ``start``: used if ``group`` has no saved offset; ``latest`` is saved as its first. ``group``: key of the offset that
        ``RowReader.commit`` saves; None: none is saved. ``share``: divide the lanes with the group's other sharing readers
        (``RowReader``). Raises ConfigurationError (a log of several columns; ``share`` without a group), ReadError and
        MetadataStoreError.
        """
        if share and not group:
            raise ConfigurationError("readers share the lanes of a log within a group: give its name")
        return RowReader(self._bookkeeper, self._address, start, group or "", share, self._lane)

    def alter(
        self,
        *,
        ensemble_size: AtLeastOne | None = None,
        write_quorum: AtLeastOne | None = None,
        ack_quorum: AtLeastOne | None = None,
        digest_type: DigestType | None = None,
        compression: Compression | None = None,
        fewer_copies: bool | None = None,
        retention_ms: BytesOrNone | None = None,
        retention_bytes: BytesOrNone | None = None,
    ) -> LogOptions:
        """Change options of this log while it is in use; None: no change. Returns all options but the retention.

        Writers apply them to their next ledgers. ``retention_ms``, ``retention_bytes``: rows that are older, or have more bytes
        after them in their lane, are removed; 0: none are. Raises ConfigurationError (options that contradict each other, a
        retention of an offloaded log, or one lane of a log), NoSuchLogError and MetadataStoreError.
        """
        if MARK in self._address.name:
            raise ConfigurationError(
                f"{self._address.name!r} is one lane; options are of its log: open that by its name"
            )
        return LogRegistry(self._bookkeeper.metadata).alter(
            self._lane,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            compression=compression,
            fewer_copies=fewer_copies,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )

    def metrics(self) -> Collector:
        """The lag of each reader of this log, dead readers too, for ``prometheus_client`` (extra
        ``metrics``)::

            prometheus_client.REGISTRY.register(log.metrics())

        docs/metrics.md lists the metrics; all have the label ``log``. A scrape reads the cluster and changes nothing. Raises
        ConfigurationError if ``prometheus_client`` is not installed.
        """
        with extra_needed("metrics"):
            from bookspark.support.metrics.families import FiguresCollector
        return FiguresCollector(LOG_READERS, partial(lag_figures, self._bookkeeper, self._lane, self._address.password))

    def __repr__(self) -> str:
        return f"Log({self._address.name!r}, {self._address.zookeeper!r})"


@checked
def open_log(bookkeeper: BookKeeper, name: LaneName, password: Password = b"") -> Log:
    """The log ``name``. Raises NoSuchLogError, UnauthorizedAccessError (wrong password) and MetadataStoreError."""
    record = LogRegistry(bookkeeper.metadata).get(name)
    check_password(record, password)
    return Log(bookkeeper, LogAddress(bookkeeper.zookeeper, name, password), lane_id(record))


@checked
def create_log(
    bookkeeper: BookKeeper,
    name: LogName,
    password: Password = b"",
    options: LogOptions | None = None,
    *,
    retention_ms: BytesOrNone = 0,
    retention_bytes: BytesOrNone = 0,
) -> Log:
    """Create an empty log of values. ``options``: replication and compression of its ledgers. ``retention_ms``,
    ``retention_bytes``: as for ``Log.alter``. Raises LogExistsError and MetadataStoreError."""
    registry = LogRegistry(bookkeeper.metadata)
    lane = lane_id(registry.create(name, options or LogOptions(), password))
    if retention_ms or retention_bytes:
        registry.alter(lane, retention_ms=retention_ms, retention_bytes=retention_bytes)
    return Log(bookkeeper, LogAddress(bookkeeper.zookeeper, name, password), lane)
