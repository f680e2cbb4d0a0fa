"""The wire: what clients and bookies send each other, byte for byte. Entry batches lie in the logs as they were sent.

==================  ==========================================================================
``frames``          how the bytes of a connection are divided into messages
``header``          the header of every message, and what each kind of request means
``messages``        the bodies of messages without entries
``entry_batch``     entries of a ledger as one Arrow message
``logged_frames``   batch frames as they lie in a log, many checked together
``batch_prefix``    what comes before the columns of a batch
``columns``         columns as bytes: made, compared, shifted
``digests``         the digest of each entry
``chunks``          memory to receive into
``keepalive``       noticing a peer whose host is gone
``security``        TLS, and the shared secret
==================  ==========================================================================

An example::

    from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
    from bookspark.store.wire.header import Header, Kind

    frame = encode_entries(Header(Kind.ADD, 1, 17, 0, 0), [Entry(17, 0, -1, 5, b"hello", b"")])
    assert EntryBatch(frame).entry(0).payload == b"hello"
"""
