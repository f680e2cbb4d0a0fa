"""A ledger at its bookies, and the handles of its writer and its readers.

Law: only behaviour that a client of real bookies may see.

* An append whose answer is lost, or whose writer dies, may or may not be in the ledger; a recovery decides once. Later appends of
  its writer fail.
* A reader sees some last add confirmed (LAC): not behind the last acknowledged entry, and not before the LAC sent with it or
  by the writer. It never goes back within a handle.
* An entry is readable only if it was acknowledged, or is in a closed ledger. Requesting any other entry is a reader's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bookspark.errors import (
    AddTimeoutError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.wire.columns import Heads
from bookspark.store.wire.entry_batch import Entry

if TYPE_CHECKING:
    from bookspark.store.client.writing.ledger_driver import OnFenced
    from tests.histories.log_schedules.cluster import Client


@dataclass
class Ledger:
    """A ledger at its bookies."""

    entries: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    """The number of acknowledged entries, from the first on."""
    told: int = -1
    """The least last add confirmed that every reader sees."""
    fenced: bool = False


class Acknowledged(Watermark):
    """Lets other actors run while it waits."""

    def __init__(self, step: Callable[[str], None]) -> None:
        super().__init__()
        self._step = step

    def wait_for(self, entry_id: int) -> None:
        while not self.is_done(entry_id):
            self._step(f"waits for entry {entry_id}")


class Writer:
    """The handle of a ledger's writer, also its sole appender."""

    def __init__(self, client: Client, metadata: LedgerMetadata) -> None:
        self._client, self.ledger_id, self.metadata = client, metadata.ledger_id, metadata
        self._ledger = client.world.ledgers[self.ledger_id]
        self._closed = False
        self._sent: list[bytes] = []
        self._on_fenced: OnFenced | None = None
        self.fenced = False
        self.acknowledged = Acknowledged(client.step)

    @property
    def last_add_confirmed(self) -> int:
        return self.acknowledged.value

    @property
    def last_add_pushed(self) -> int:
        return len(self._sent) - 1

    last_add_fully_replicated = last_add_confirmed

    @property
    def length(self) -> int:
        return sum(map(len, self._ledger.entries[: self.last_add_confirmed + 1]))

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def driver(self) -> Writer:
        return self

    @property
    def next_entry_id(self) -> int:
        return len(self._sent)

    def sole_appender(self, on_fenced: OnFenced | None = None) -> Writer:
        self._on_fenced = on_fenced if self._client.world.goes_on_after_fences else None
        return self

    def unacknowledged(self) -> list[bytes]:
        return self._sent[self.acknowledged.value + 1 :]

    def send(self) -> None:
        pass

    def tell_last_add_confirmed_soon(self) -> None:
        pass

    def append(self, payload: bytes) -> int:
        """As a handle: raises the append's error. As an appender: the watermark has it."""
        future = self.append_async(payload)
        return future.result() if self._on_fenced is None else future.entry_id

    def append_async(self, payload: bytes) -> AppendFuture:
        if self._closed:
            raise LedgerClosedError("closed")
        future = AppendFuture(self.acknowledged, len(self._sent))
        self._sent.append(payload)
        if self.acknowledged.error is None and not self.fenced:
            self._add(payload)
        return future

    def append_batch(self, payloads: list[bytes]) -> range:
        first = self.next_entry_id
        for payload in payloads:
            self.append(payload)
        return range(first, self.next_entry_id)

    def append_all(self, payloads: list[bytes], heads: Heads | None = None) -> int:
        rows = payloads if heads is None else list(map(bytes.__add__, heads.each(), payloads))
        for row in rows:
            self.append_async(row)
        return sum(map(len, rows))

    def _add(self, payload: bytes) -> None:
        ledger, world = self._ledger, self._client.world
        self._client.step(f"add to {self.ledger_id}: {payload[-120:]!r}")
        try:
            world.records.read_ledger(self.ledger_id)
        except NoSuchLedgerError as error:
            self.acknowledged.fail(error)
            return
        if ledger.fenced:
            self._is_fenced()
            return
        ledger.entries.append(payload)
        # The writer dies before the acknowledgement, or no bookie answers.
        self._client.step(f"hears of its add to {self.ledger_id}")
        if ledger.fenced:
            self._is_fenced()
        elif self._client.happens(world.faults.lost_adds):
            self.acknowledged.fail(AddTimeoutError("no answer"))
        else:
            ledger.told = max(ledger.told, ledger.acknowledged - 1)
            ledger.acknowledged = len(ledger.entries)
            self.acknowledged.advance(ledger.acknowledged - 1)

    def _is_fenced(self) -> LedgerFencedError:
        error = LedgerFencedError("fenced")
        if self._on_fenced is None:
            self.acknowledged.fail(error)
        elif not self.fenced:
            self.fenced = True
            self._on_fenced(self.acknowledged, error)
        return error

    def flush_last_add_confirmed(self, wait: bool = True) -> int:
        self._client.step(f"tell the LAC of {self.ledger_id}")
        self._ledger.told = max(self._ledger.told, self.last_add_confirmed)
        return self.last_add_confirmed

    def close(self, wait: bool = True, timeout: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        if not wait:
            return
        self._client.step(f"close {self.ledger_id}")
        if self.acknowledged.error is not None:
            raise self.acknowledged.error
        if self.fenced:
            raise LedgerFencedError("fenced")
        metadata = self._client.world.records.read_ledger(self.ledger_id).value
        if metadata.closed and metadata.last_entry_id == self.last_add_confirmed:
            return
        if self._ledger.fenced:
            raise self._is_fenced()
        self._ledger.fenced = True
        self._client.closed(self.ledger_id)


class Reader:
    """The handle of a reader."""

    def __init__(self, client: Client, ledger_id: int) -> None:
        self._client, self.ledger_id = client, ledger_id
        self._metadata = client.world.records.read_ledger(ledger_id).value
        self._ledger = client.world.ledgers[ledger_id]
        self._heard = -1
        if self._metadata.closed:
            self._heard = self._metadata.last_entry_id
        else:
            self._hear()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._heard

    @property
    def length(self) -> int:
        return sum(map(len, self._ledger.entries[: self._heard + 1]))

    def _hear(self) -> None:
        least = max(self._heard, self._ledger.told)
        self._heard = self._client.world.random.randint(least, max(least, self._ledger.acknowledged - 1))

    def read_last_add_confirmed(self) -> int:
        self._client.ask(f"asks for the LAC of {self.ledger_id}")
        if not self._metadata.closed:
            # The metadata watch reported a close or a deletion.
            self._metadata = self._client.world.records.read_ledger(self.ledger_id).value
            if self._metadata.closed:
                self._heard = self._metadata.last_entry_id
            else:
                self._hear()
        return self._heard

    def confirm(self, entry_id: int) -> None:
        if entry_id >= self._ledger.acknowledged:
            raise AssertionError(f"entry {entry_id} of ledger {self.ledger_id} is not confirmed")
        self._heard = max(self._heard, entry_id)

    def read(self, first: int, last: int) -> Iterator[Entry]:
        assert last <= self._heard, f"entry {last} of ledger {self.ledger_id} is read, and not confirmed"
        for entry_id in range(first, last + 1):
            if entry_id in (first, last):
                self._client.ask(f"read {self.ledger_id}, entry {entry_id}")
            if self.ledger_id not in self._client.world.records.list_ledgers():
                raise NoSuchLedgerError(f"ledger {self.ledger_id} is deleted")
            if entry_id >= self._ledger.acknowledged:
                raise NoSuchEntryError(f"entry {entry_id} of ledger {self.ledger_id}")
            yield Entry(self.ledger_id, entry_id, -1, 0, self._ledger.entries[entry_id], b"")

    def close(self) -> None:
        pass

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        pass
