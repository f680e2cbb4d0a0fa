"""Reading ledgers, and opening them with or without recovery.

=====================  =====================================================================================================
``read_handle``        ``ReadHandle``, what users read with: ranges, the last add confirmed, long polls
=====================  =====================================================================================================

::

    from bookspark.store.client import BookKeeper

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        payloads = [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()]
"""
