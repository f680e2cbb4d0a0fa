"""The client: creates, writes, opens, reads and deletes ledgers.

=====================  =====================================================================================================
``bookkeeper``         ``BookKeeper``, the front door: all that a user can do with a cluster
``client_config``      the client's options, with their units and bounds
``writing``            ``LedgerHandle``: how entries are appended, and how a ledger is created and closed
``reading``            ``ReadHandle``: how entries are read, and how a ledger is opened and recovered
``inspection``         what one bookie says of itself, and the copies that it has
``runtime``            what all handles of a client share in one process: threads, connections, watches, open writers
``placement``          which bookies make an ensemble
``network``            connections to bookies, and requests as frames
=====================  =====================================================================================================

A room may import those below it in the table, but not those above; ``writing`` imports ``reading``, whose handle it extends.

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
