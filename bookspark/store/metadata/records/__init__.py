"""Records: the values that a metadata store keeps, and the JSON documents that they become.

=========================  ==================================================================================
``versioned``              a record together with its version
``bookie_registration``    what a bookie publishes while it serves
``codec``                  ledgers, cookies, tasks and registrations as JSON documents, and back
``documents``              how every record becomes a document, and a document a record again
``bookkeeper_format``      the same for ledgers and bookies that BookKeeper's own clients use, in their formats
``bookkeeper_texts``       cookies, tasks, locks and votes as BookKeeper's auditor and workers read them
``ledger_spans``           how many ledgers there are where, and ranges of ids for tasks
``names``                  which names and ids can be used
``refusals``               the errors that all stores raise in the same words
=========================  ==================================================================================

Example::

    from bookspark.store.metadata.records.codec import decode_ledger, encode_ledger
    document = encode_ledger(metadata)
    assert decode_ledger(metadata.ledger_id, document) == metadata
"""
