"""What handles for reading and for writing have in common, besides what they do with a ledger: how they show themselves, why they
can't be pickled, and reads that are begun and not waited for.

Law: nothing here asks a bookie or the metadata store, and no text has a password or a master key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.runtime.calls import AwaitableFuture, Calls
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.wire.entry_batch import Entry
from bookspark.support.arguments import EntryId, LastEntryId, checks_methods


@checks_methods
class AnyHandle(ABC):
    """The common part of ``ReadHandle`` and ``LedgerHandle``."""

    _context: ClientContext

    @property
    @abstractmethod
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, as the handle knows it."""

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int:
        """The LAC (last add confirmed), as the handle knows it."""

    @abstractmethod
    def read(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """Confirmed entries."""

    @abstractmethod
    def read_unconfirmed(self, first: int, last: int) -> Iterator[Entry]:
        """Entries, confirmed or not."""

    @property
    def closed(self) -> bool:
        """True if this handle knows that the ledger is closed: it has its last entry, and nothing is ever appended to it."""
        return self.metadata.closed

    def read_async(self, first: EntryId = 0, last: LastEntryId | None = None) -> AwaitableFuture[list[Entry]]:
        """Begin ``read`` in a thread of the client's, and return a future at once. It may be awaited. Its result is the list of
        the entries, which are all in memory then, or an error of ``read``. Raises BookKeeperError if the client was closed."""
        return self._calls.begin(lambda: list(self.read(first, last)))

    def read_unconfirmed_async(self, first: EntryId, last: LastEntryId) -> AwaitableFuture[list[Entry]]:
        """Begin ``read_unconfirmed`` as ``read_async`` begins ``read``. Raises BookKeeperError if the client was closed."""
        return self._calls.begin(lambda: list(self.read_unconfirmed(first, last)))

    @property
    def _calls(self) -> Calls:
        return self._context.calls

    @property
    def _state_told(self) -> str:
        """The ledger's state, for people."""
        return self.metadata.state.value

    def __repr__(self) -> str:
        ledger_id, confirmed = self.metadata.ledger_id, self.last_add_confirmed
        return f"<{type(self).__name__}: ledger {ledger_id}, {self._state_told}, last add confirmed {confirmed}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled: it belongs to a client in this process. Pickle the BookKeeper client and "
            "the ledger's id, and open the ledger there; its metadata and its entries can be pickled"
        )
