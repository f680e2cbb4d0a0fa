"""The rows of a log: how entries hold them, and the data ledgers that take them.

================  =========================================================================================
``encodings``     how entries hold rows, and what an encoder and a decoder do
``value_rows``    entries that are one value each
``stamped_rows``  entries of producers: a stamp and a value
``data_ledgers``  takes the rows of a writer
``splits``        divides what is read into partitions
``statistics``    what a commit tells of its rows
================  =========================================================================================

::

    from bookspark.logs.rows.splits import positioned, split
    from bookspark.protocol.logs.commits import EntryRange

    ranges = [EntryRange(ledger_id=7, first_entry_id=0, last_entry_id=99, rows=100, size=5000)]
    [[half], [other]] = split(positioned(ranges), min_partitions=2)
    assert (half.rows, other.first_entry_id) == (50, 50)
"""
