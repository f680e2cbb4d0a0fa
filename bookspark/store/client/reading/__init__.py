"""Reading of ledgers.

=====================  =====================================================================================================
``read_handle``        ``ReadHandle``: reads ranges and the last add confirmed, long polls
=====================  =====================================================================================================

::

    from bookspark.store.client import BookKeeper

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        payloads = [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()]
"""
