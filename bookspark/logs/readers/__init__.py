"""Who reads a log, and how far behind its end: readers tell where they are, and whoever asks computes their lag.

================  ==============================================================
``records``       the records of readers in the metadata store
``registration``  a reader tells how far it is, beside its reading
``lag``           how far readers are behind the log's end
================  ==============================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.readers.lag import readers_of

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        for reader in readers_of(bookkeeper, "orders"):
            print(reader.title, reader.state.value, reader.lag_rows, reader.lag_seconds)
"""
