"""The wire protocol of clients and bookies, byte for byte. The logs hold entry batches as received.

==================  ==========================================================================
``frames``          division of a connection's bytes into messages
``header``          the header of every message, and the kinds of request
``messages``        bodies of messages without entries
``entry_batch``     entries of a ledger as one Arrow message
``logged_frames``   batch frames in a log, checked many at a time
``batch_prefix``    the bytes before the columns of a batch
``columns``         columns as bytes: construction, comparison, shifts
``digests``         the digest of each entry
``chunks``          receive buffers
``keepalive``       detection of a peer whose host is gone
``security``        TLS and the shared secret
==================  ==========================================================================

An example::

    from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
    from bookspark.store.wire.header import Header, Kind

    frame = encode_entries(Header(Kind.ADD, 1, 17, 0, 0), [Entry(17, 0, -1, 5, b"hello", b"")])
    assert EntryBatch(frame).entry(0).payload == b"hello"
"""
