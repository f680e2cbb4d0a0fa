"""What is decided about logs: who writes one, which ledgers it is made of, which batches are committed, and what was offloaded.

=================  =============================================================================================================
``log_record``     the log's record, and the transitions that change it
``lanes``          the lanes of a log: who writes which, and what an offset says
``ended_lanes``    how a lane ends, and what is kept of it
``retention``      how long rows of a log stay
``log_options``    how a log's rows are kept, and in which ledgers
``orphans``        which ledgers can never become part of a log
``commits``        one commit, and the header that sums up those before it
``replays``        whether a micro-batch is committed already, or of a Spark checkpoint that was set back
``log_offload``    how far the rows were offloaded to a table
``reader_record``  what one reader told of itself, and whether that still tells something
=================  =============================================================================================================

Example::

    from bookspark.protocol.logs.log_record import LogRecord

    record = LogRecord("orders").claim("run-1")
    assert (record.owner, record.epoch) == ("run-1", 1)
    record = record.with_commit_ledger(7, "run-1", 1, recovered=())  # then written by compare-and-set
"""
