"""Ledgers of a cluster of Apache BookKeeper's, copied into one of ours (docs/guides/bookkeeper.md).

=============  ==========================================================
``source``      what is read of the other cluster's ZooKeeper: ``Source``
``reads``       entries from its bookies: ``EntryReader``
``copying``     one ledger, from there to here: ``copy_ledger``
=============  ==========================================================

An example::

    from bookspark import BookKeeper
    from bookspark.operations.moving.copying import copy_ledger
    from bookspark.operations.moving.source import Source

    with Source("zk://old1:2181/ledgers") as source, BookKeeper("zk://new1:2181") as bookkeeper:
        for ledger_id in source.ledger_ids():
            print(copy_ledger(source, bookkeeper, ledger_id))
"""
