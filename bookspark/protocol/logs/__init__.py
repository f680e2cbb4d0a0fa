"""Decisions about logs: writers, ledgers of a log, committed batches, and offloaded rows.

=================  =============================================================================================================
``log_record``     the log's record, and the transitions that change it
``lanes``          the lanes of a log: the writer of each, and the meaning of an offset
``ended_lanes``    the end of a lane, and its remains
``retention``      how long rows of a log stay
``log_options``    storage of a log's rows, and properties of its ledgers
``orphans``        ledgers that can never become part of a log
``commits``        one commit, and the header that sums up those before it
``replays``        is a micro-batch committed already, or from a Spark checkpoint that was set back?
``log_offload``    progress of an offload to a table
``reader_record``  one reader's last report, and whether it is outdated
=================  =============================================================================================================

Example::

    from bookspark.protocol.logs.log_record import LogRecord

    record = LogRecord("orders").claim("run-1")
    assert (record.owner, record.epoch) == ("run-1", 1)
    record = record.with_commit_ledger(7, "run-1", 1, recovered=())  # then written by compare-and-set
"""
