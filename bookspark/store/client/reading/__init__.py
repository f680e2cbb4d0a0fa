"""Reading ledgers, and opening them with or without recovery.

=====================  =====================================================================================================
``ledger_opening``     opens a ledger; recovers it first if it is not closed
``read_handle``        ``ReadHandle``, what users read with: ranges, the last add confirmed, long polls
``any_handle``         what handles for reading and writing have in common: how they show themselves, reads that are begun
``range_reading``      drives the machine that reads a range, and keeps its clock
=====================  =====================================================================================================

::

    from bookspark.store.client import BookKeeper

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        payloads = [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()]
"""
