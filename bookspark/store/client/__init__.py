"""The client: creates, writes, opens, reads and deletes ledgers.

=====================  =====================================================================================================
``bookkeeper``         ``BookKeeper``, the entry point to a cluster
``client_config``      the client's options, with their units and bounds
``writing``            ``LedgerHandle``: appends entries, creates and closes ledgers
``reading``            ``ReadHandle``: reads entries of an open or closed ledger
``inspection``         status, index and copies of a single bookie
``runtime``            shared by all handles of a client in one process: threads, connections, watches, open writers
``network``            connections to bookies, and requests as frames
=====================  =====================================================================================================

A package may import packages below it in the table, but none above; ``writing`` imports ``reading``, whose handle it extends.

::

    from bookspark.store.client import BookKeeper

    with BookKeeper("127.0.0.1:2181") as bookkeeper, bookkeeper.create_ledger() as ledger:
        entry_id = ledger.append(b"hello")
"""

from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.writing.futures import AppendFuture, SyncFuture
from bookspark.store.client.writing.ledger_handle import LedgerHandle, LedgerHandleAdv

__all__ = ["AppendFuture", "BookKeeper", "LedgerHandle", "LedgerHandleAdv", "ReadHandle", "SyncFuture"]
