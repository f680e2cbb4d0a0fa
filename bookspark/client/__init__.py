"""The client: ``BookKeeper``, the handles of ledgers, placement and connections."""

from bookspark.client.bookkeeper import BookKeeper
from bookspark.client.ledger_handle import LedgerHandle
from bookspark.client.read_handle import ReadHandle

__all__ = ["BookKeeper", "LedgerHandle", "ReadHandle"]
