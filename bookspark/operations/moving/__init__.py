"""Copies of ledgers from an Apache BookKeeper cluster (docs/guides/bookkeeper.md).

``copying``: ``Source`` reads ledger metadata and bookie addresses there, ``EntryReader`` reads entries from the bookies there,
``copy_ledger`` copies one ledger from there to here.

An example::

    from bookspark import BookKeeper
    from bookspark.operations.moving.copying import EntryReader, Source, copy_ledger

    with Source("zk://old1:2181/ledgers") as source, BookKeeper("zk://new1:2181") as bookkeeper:
        with EntryReader(source.addresses()) as reader:
            for ledger_id in source.ledger_ids():
                print(copy_ledger(source, reader, bookkeeper, ledger_id))
"""
