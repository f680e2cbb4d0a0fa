"""A log, for services and scripts that have no Spark."""

from __future__ import annotations

from typing import Annotated

from bookspark.arguments import Password, Rule, checked, checks_methods
from bookspark.client import BookKeeper
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import LaneName, LogName, LogRegistry, check_password
from bookspark.logs.producer import Producer
from bookspark.logs.row_reader import RowReader
from bookspark.protocol.logs.log_record import LogOptions

Start = Annotated[str, Rule("'earliest' or 'latest'", ("earliest", "latest").__contains__)]


@checks_methods
class Log:
    """A log, opened by ``open_log``. Thread-safe; it keeps nothing open."""

    def __init__(self, bookkeeper: BookKeeper, address: LogAddress) -> None:
        self._bookkeeper, self._address = bookkeeper, address

    @property
    def name(self) -> str:
        """The log's name."""
        return self._address.name

    def producer(self, name: LogName) -> Producer:
        """The producer ``name`` of this log, for one process at a time: an earlier one of this name ends, and this one goes on
        behind its last row.

        ``name``: of the form of a log's name; it stays the same over restarts of the service. Raises
        TooManyLanesError, ConfigurationError (a log of several columns), LedgerRecoveryError, NotEnoughBookiesError and
        MetadataStoreError.
        """
        return Producer(self._bookkeeper, self._address, name)

    def reader(self, start: Start = "earliest", group: LogName | None = None) -> RowReader:
        """A reader of the rows of all lanes, or of one if the log was opened as ``orders@3``.

        ``start``: where it begins if nothing was saved for ``group``. ``group``: the name under which ``RowReader.commit`` saves
        how far it is; None: nothing is saved. Raises ConfigurationError (a log of several columns), ReadError and
        MetadataStoreError.
        """
        return RowReader(self._bookkeeper, self._address, start, group or "")

    def __repr__(self) -> str:
        return f"Log({self._address.name!r}, {self._address.zookeeper!r})"


@checked
def open_log(bookkeeper: BookKeeper, name: LaneName, password: Password = b"") -> Log:
    """The log ``name``. Raises NoSuchLogError, UnauthorizedAccessError (wrong password) and MetadataStoreError."""
    record = LogRegistry(bookkeeper.metadata).get(name)
    check_password(record, password)
    return Log(bookkeeper, LogAddress(bookkeeper.zookeeper, name, password))


@checked
def create_log(
    bookkeeper: BookKeeper, name: LogName, password: Password = b"", options: LogOptions | None = None
) -> Log:
    """Make an empty log of values. ``options``: how its ledgers are replicated and compressed. Raises LogExistsError and
    MetadataStoreError."""
    LogRegistry(bookkeeper.metadata).create(name, options or LogOptions(), password)
    return Log(bookkeeper, LogAddress(bookkeeper.zookeeper, name, password))
