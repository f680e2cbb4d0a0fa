"""The rows of a log: their encodings in entries, and the data ledgers that store them.

================  =========================================================================================
``encodings``     encodings of entries, and the interfaces of encoders and decoders
``value_rows``    entries of one value each
``stamped_rows``  entries of producers: a stamp and a value
``data_ledgers``  appends a writer's rows
``splits``        divides rows into partitions
``statistics``    bounds of columns in a commit
================  =========================================================================================

::

    from bookspark.logs.rows.splits import positioned, split
    from bookspark.protocol.logs.commits import EntryRange

    ranges = [EntryRange(ledger_id=7, first_entry_id=0, last_entry_id=99, rows=100, size=5000)]
    [[half], [other]] = split(positioned(ranges), min_partitions=2)
    assert (half.rows, other.first_entry_id) == (50, 50)
"""
