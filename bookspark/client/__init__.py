"""The client: ``BookKeeper``, the handles of ledgers, placement and connections."""

from bookspark.client.bookkeeper import BookKeeper
from bookspark.client.reading.read_handle import ReadHandle
from bookspark.client.writing.ledger_handle import LedgerHandle

__all__ = ["BookKeeper", "LedgerHandle", "ReadHandle"]
