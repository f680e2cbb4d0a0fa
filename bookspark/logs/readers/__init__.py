"""The readers of a log and their lag: readers report their offsets, and clients compute the lag.

================  ==============================================================
``records``       the records of readers in the metadata store
``registration``  a reader's reports of its offset
``lag``           distance of readers from the log's end
================  ==============================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.readers.lag import readers_of

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        for reader in readers_of(bookkeeper, "orders"):
            print(reader.title, reader.state.value, reader.lag_rows, reader.lag_seconds)
"""
