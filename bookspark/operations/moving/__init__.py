"""Copies of ledgers from an Apache BookKeeper cluster (docs/guides/bookkeeper.md).

===========  ================================================================
``source``   reads ledger metadata and bookie addresses there: ``Source``
``reads``    reads entries from the bookies there: ``EntryReader``
``copying``  copies one ledger from there to here: ``copy_ledger``
===========  ================================================================

An example::

    from bookspark import BookKeeper
    from bookspark.operations.moving.copying import copy_ledger
    from bookspark.operations.moving.reads import EntryReader
    from bookspark.operations.moving.source import Source

    with Source("zk://old1:2181/ledgers") as source, BookKeeper("zk://new1:2181") as bookkeeper:
        with EntryReader(source.addresses()) as reader:
            for ledger_id in source.ledger_ids():
                print(copy_ledger(source, reader, bookkeeper, ledger_id))
"""
