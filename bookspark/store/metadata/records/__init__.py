"""Records: the values of a metadata store, and their JSON documents.

=========================  ==================================================================================
``versioned``              a record together with its version
``bookie_registration``    a bookie's published registration
``codec``                  ledgers, cookies, tasks and registrations as JSON documents, and back
``documents``              encoding and decoding shared by all records
``bookkeeper_format``      ledgers and bookies in the formats of BookKeeper's own clients
``bookkeeper_texts``       cookies, tasks, locks and votes as BookKeeper's auditor and workers read them
``ledger_room``            the room that a ledger's record keeps for later changes
``ledger_spans``           counts of ledgers by span of ids, and ranges of ids for tasks
``names``                  valid names and ids
``refusals``               the errors that all stores raise in the same words
=========================  ==================================================================================

Example::

    from bookspark.store.metadata.records.codec import decode_ledger, encode_ledger
    document = encode_ledger(metadata)
    assert decode_ledger(metadata.ledger_id, document) == metadata
"""
