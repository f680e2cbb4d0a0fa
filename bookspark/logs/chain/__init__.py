"""The chain of a lane: its record, the commit ledgers in the record, and their writers and readers.

==================  =======================================================================================
``registry``        the records of logs in the metadata store
``lane_choice``     chooses the lane of a writer
``lane_index``      creates lanes, and removes ended lanes from the index
``log_run``         a log's address, and the run that writes it
``commit_ledgers``  reads a commit ledger: its header and its commits
``reader``          reads a lane's commits, in order, as the lane grows
``open_rows``       the rows of the ledger that the newest commit opened
``stamps``          a producer's row as an entry holds it
``committer``       appends commits, each batch once
``commit_times``    finds the first row of a time
``time_search``     finds a time in an ascending sequence of times
``maintenance``     deletes orphans, truncates and deletes logs
``retention``       removes rows beyond the log's retention
``codec``           the bytes of records and commits
==================  =======================================================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.chain.registry import LogRegistry

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        print(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers)
"""
