"""Decisions about reads: by a reader, by a reader that waits for more entries, and by ledger recovery.

===================  ===========================================================================================================
``range_read``       a range of entries, from any replicas that answer
``read_order``       the order in which the replicas of an entry are asked
``lac_read``         the LAC (last add confirmed) of a ledger that is not closed
``lac_wait``         waiting until an entry is confirmed or the ledger is closed (long poll)
``recovery``         ledger recovery: fence, find the last entry, write back, close
``answers``          answers of bookies, counted and in words
===================  ===========================================================================================================

Example::

    from bookspark.protocol.ledger.actions import MetadataRead
    from bookspark.protocol.reading.recovery import LedgerRecovery

    recovery = LedgerRecovery(replaces_bookies=True)
    actions = recovery.step(MetadataRead(metadata, version))  # carry them out, and step it with each answer until Finish or Fail
"""
