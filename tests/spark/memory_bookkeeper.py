"""A client without bookies, for tests of the log code: ledgers are lists, metadata is a MemoryStore, faults are set
in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError, LedgerFencedError, NoSuchLedgerError
from bookspark.logs import LogRun
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.columns import Heads
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.entry_batch import Entry

if TYPE_CHECKING:
    from bookspark.store.client.writing.ledger_driver import OnFenced


class MemoryBookKeeper:
    """Several instances over one ``store`` and ``entries`` are several clients of a cluster."""

    def __init__(self, store: MemoryStore | None = None, entries: dict[int, list[bytes]] | None = None) -> None:
        self.metadata = store or MemoryStore()
        self.entries = entries if entries is not None else {}
        # Functions to call, one before each of the next appends, in order.
        self.before_append: list[Callable[[int], None]] = []
        # The number of next appends to keep but answer with a timeout.
        self.lose_answers = 0
        # True: a sole appender's entries are kept, and acknowledged by the close only.
        self.delay_answers = False
        # The last synced entry of each ledger.
        self.synced: dict[int, int] = {}
        self.fail_syncs = 0
        # Ledgers whose answering bookies do not know the newest LAC.
        self.untold: set[int] = set()
        # True: a bookie is down, and no other bookie can take over its copies of guaranteed ledgers.
        self.hang_closes = False
        self._data_ledgers: dict[LogRun, int] = {}

    def other(self) -> MemoryBookKeeper:
        """Another client of the same cluster."""
        other = MemoryBookKeeper(self.metadata, self.entries)
        other.untold, other._data_ledgers = self.untold, self._data_ledgers
        return other

    def open_ledgers(self) -> list[int]:
        """Ledgers that are not closed."""
        return [one for one in self.list_ledgers() if not self.get_ledger_metadata(one).closed]

    def create_ledger(self, **options: Any) -> MemoryLedger:
        password = options.pop("password")
        metadata = LedgerMetadata(
            ledger_id=self.metadata.new_ledger_id(),
            fragments=(Fragment(0, tuple(f"bookie-{n}" for n in range(options["ensemble_size"]))),),
            master_key=master_key(password),
            **options,
        )
        self.metadata.create_ledger(metadata)
        self.entries[metadata.ledger_id] = []
        return MemoryLedger(self, metadata.ledger_id)

    def data_ledger(self, run: LogRun) -> int:
        """The id of a data ledger of ``run``, the same at each call, for commits whose rows nobody reads."""
        if run not in self._data_ledgers:
            self._data_ledgers[run] = run.create_ledger(self, LogOptions(), "data").ledger_id
        return self._data_ledgers[run]

    def open_ledger(self, ledger_id: int, password: bytes = b"") -> MemoryReader:
        metadata, version = self.metadata.read_ledger(ledger_id)
        if not metadata.closed:
            size = sum(map(len, self.entries[ledger_id]))
            closed = replace(
                metadata, state=LedgerState.CLOSED, last_entry_id=len(self.entries[ledger_id]) - 1, length=size
            )
            self.metadata.write_ledger(closed, version)
        return self._reader(ledger_id)

    def open_ledger_no_recovery(
        self, ledger_id: int, password: bytes = b"", *, confirmed: int | None = None
    ) -> MemoryReader:
        self.metadata.read_ledger(ledger_id)
        reader = self._reader(ledger_id)
        if confirmed is not None:
            reader.confirm(confirmed)
        return reader

    def _reader(self, ledger_id: int) -> MemoryReader:
        return MemoryReader(self, ledger_id)

    def delete_ledger(self, ledger_id: int) -> None:
        self.metadata.delete_ledger(ledger_id)

    def list_ledgers(self) -> list[int]:
        return self.metadata.list_ledgers()

    def get_ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.metadata.read_ledger(ledger_id).value


class MemoryLedger:
    def __init__(self, bookkeeper: MemoryBookKeeper, ledger_id: int) -> None:
        self._bookkeeper, self.ledger_id = bookkeeper, ledger_id
        self._closed = False
        self._acknowledged = Watermark()
        self._appender: MemoryAppender | None = None
        self.metadata = bookkeeper.get_ledger_metadata(ledger_id)

    @property
    def last_add_confirmed(self) -> int:
        return len(self._bookkeeper.entries[self.ledger_id]) - 1

    @property
    def length(self) -> int:
        return sum(map(len, self._bookkeeper.entries[self.ledger_id]))

    def append(self, payload: bytes) -> int:
        bookkeeper = self._bookkeeper
        if bookkeeper.before_append:
            bookkeeper.before_append.pop(0)(self.ledger_id)
        if self._closed:
            raise LedgerClosedError("closed")
        if bookkeeper.metadata.read_ledger(self.ledger_id).value.closed:
            raise LedgerFencedError("fenced")
        bookkeeper.entries[self.ledger_id].append(payload)
        if bookkeeper.lose_answers:
            bookkeeper.lose_answers -= 1
            raise AddTimeoutError("no answer")
        return self.last_add_confirmed

    def append_async(self, payload: bytes) -> AppendFuture:
        """The handle ends with the first lost answer."""
        if self._acknowledged.error is not None:
            raise self._acknowledged.error
        try:
            self._acknowledged.advance(self.append(payload))
        except BookKeeperError as error:
            self._acknowledged.fail(error)
            return AppendFuture(self._acknowledged, self._acknowledged.value + 1)
        return AppendFuture(self._acknowledged, self._acknowledged.value)

    @property
    def last_add_pushed(self) -> int:
        return self.last_add_confirmed

    def sole_appender(self, on_fenced: OnFenced | None = None) -> MemoryAppender:
        self._appender = MemoryAppender(self._bookkeeper, self, on_fenced)
        return self._appender

    def tell_last_add_confirmed_soon(self) -> None:
        pass

    def append_batch(self, payloads: list[bytes]) -> range:
        first = self.last_add_confirmed + 1
        return range(first, [self.append(payload) for payload in payloads][-1] + 1)

    def append_batch_async(self, payloads: Any) -> SimpleNamespace:
        try:
            for value in payloads.to_pylist():
                self.append(value)
        except AddTimeoutError as error:
            return SimpleNamespace(result=_raiser(error))
        last = self.last_add_confirmed
        return SimpleNamespace(result=lambda: last)

    def flush_last_add_confirmed(self, wait: bool = True) -> int:
        return self.last_add_confirmed

    def sync(self) -> int:
        if self._bookkeeper.fail_syncs:
            self._bookkeeper.fail_syncs -= 1
            raise AddTimeoutError("no sync")
        self._bookkeeper.synced[self.ledger_id] = self.last_add_confirmed
        return self.last_add_confirmed

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, wait: bool = True, timeout: float | None = None) -> None:
        if self._bookkeeper.hang_closes:
            assert timeout is not None, "waits for ever"
            raise AddTimeoutError("not closed in time")
        if self._appender is not None and self._appender.fenced:
            raise LedgerFencedError("fenced")
        if not self._closed and not self._bookkeeper.metadata.read_ledger(self.ledger_id).value.closed and wait:
            self._bookkeeper.open_ledger(self.ledger_id)
        self._closed = True
        if self._appender is not None and wait:
            self._appender.acknowledged.advance(self.last_add_confirmed)


class MemoryAppender:
    """A ``SoleAppender`` of a ``MemoryLedger``, and its driver."""

    def __init__(self, bookkeeper: MemoryBookKeeper, ledger: MemoryLedger, on_fenced: OnFenced | None) -> None:
        self._bookkeeper, self._ledger, self._on_fenced = bookkeeper, ledger, on_fenced
        self.acknowledged, self.driver = Watermark(), self
        self.fenced = False
        self._payloads: list[bytes] = []

    @property
    def next_entry_id(self) -> int:
        return len(self._payloads)

    def unacknowledged(self) -> list[bytes]:
        return self._payloads[self.acknowledged.value + 1 :]

    def append(self, payload: bytes) -> None:
        if self.acknowledged.error is not None:
            raise self.acknowledged.error
        self._payloads.append(payload)
        if self.fenced:
            return
        try:
            entry_id = self._ledger.append(payload)
        except LedgerFencedError as error:
            assert self._on_fenced is not None
            self.fenced = True
            self._on_fenced(self.acknowledged, error)
        except BookKeeperError as error:
            self.acknowledged.fail(error)
        else:
            if not self._bookkeeper.delay_answers:
                self.acknowledged.advance(entry_id)

    def send(self) -> None:
        pass

    def append_all(self, payloads: list[bytes], heads: Heads | None = None) -> int:
        rows = payloads if heads is None else list(map(bytes.__add__, heads.each(), payloads))
        for row in rows:
            self.append(row)
        return sum(map(len, rows))


class MemoryReader:
    def __init__(self, bookkeeper: MemoryBookKeeper, ledger_id: int) -> None:
        self._bookkeeper, self.ledger_id = bookkeeper, ledger_id
        self._metadata = bookkeeper.get_ledger_metadata(ledger_id)
        self._confirmed = -1

    @property
    def last_add_confirmed(self) -> int:
        return len(self._bookkeeper.entries[self.ledger_id]) - 1

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata, as last seen if the ledger was deleted."""
        with suppress(NoSuchLedgerError):
            self._metadata = self._bookkeeper.get_ledger_metadata(self.ledger_id)
        return self._metadata

    @property
    def length(self) -> int:
        return sum(map(len, self._bookkeeper.entries[self.ledger_id]))

    def read_last_add_confirmed(self) -> int:
        if not self.metadata.closed:
            # The watch of a deleted ledger has ended, so the metadata is read again.
            self._bookkeeper.get_ledger_metadata(self.ledger_id)
            heard = self.last_add_confirmed - (self.ledger_id in self._bookkeeper.untold)
            return max(heard, self._confirmed)
        return self.last_add_confirmed

    def read_last_add_confirmed_and_entry(self, entry_id: int, timeout: float) -> tuple[int, Entry | None]:
        last = self.read_last_add_confirmed()
        return last, self._entry(entry_id) if entry_id <= last else None

    def confirm(self, entry_id: int) -> None:
        assert -1 <= entry_id <= self.last_add_confirmed
        self._confirmed = max(self._confirmed, entry_id)

    def read(self, first: int, last: int) -> Iterator[Entry]:
        for entry_id in range(first, last + 1):
            # Bookies collect deleted ledgers, so a read of a deleted ledger raises here.
            self._bookkeeper.get_ledger_metadata(self.ledger_id)
            yield self._entry(entry_id)

    def _entry(self, entry_id: int) -> Entry:
        return Entry(self.ledger_id, entry_id, -1, 0, self._bookkeeper.entries[self.ledger_id][entry_id], b"")

    def read_batches(self, first: int, last: int) -> Iterator[pyarrow.RecordBatch]:
        entries = list(self.read(first, last))
        before = accumulate(len(payload) for payload in self._bookkeeper.entries[self.ledger_id][: last + 1])
        lengths = list(before)[first:]
        yield pyarrow.record_batch(
            {
                "ledger_id": pyarrow.array([self.ledger_id] * len(entries), pyarrow.int64()),
                "entry_id": pyarrow.array([entry.entry_id for entry in entries], pyarrow.int64()),
                "length": pyarrow.array(lengths[: len(entries)], pyarrow.int64()),
                "payload": pyarrow.array([bytes(entry.payload) for entry in entries], pyarrow.binary()),
            }
        )

    def close(self) -> None:
        pass

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


def _raiser(error: Exception) -> Callable[[], int]:
    def result() -> int:
        raise error

    return result
