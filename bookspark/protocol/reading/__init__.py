"""What is decided when entries are read: by a reader, by a reader that waits for more, and by ledger recovery.

===================  ===========================================================================================================
``range_read``       a range of entries, from whichever replicas answer
``read_order``       in which order the replicas of an entry are asked
``lac_read``         the LAC (last add confirmed) of a ledger that is not closed
``lac_wait``         waiting until an entry is confirmed or the ledger is closed (long poll)
``recovery``         ledger recovery: fence, find the last entry, write back, close
``recovery_phases``  its phases, and the events that each takes
``fencing``          a round of recovery's LAC reads with the fence flag
``run_read``         a round of recovery's reads of entries
``write_back``       a run of entries that recovery writes back, and the bookies that it replaces for that
``loss_notes``       what recovery could not know, where an operator accepts the loss
``later_entries``    does any bookie hold an entry behind one that is not known? Asked before such a loss is accepted
``asked``            what was asked of bookies, to tell a late answer from one that can't be
``answers``          answers of bookies, counted and in words
===================  ===========================================================================================================

Example::

    from bookspark.protocol.ledger.actions import MetadataRead
    from bookspark.protocol.reading.recovery import LedgerRecovery

    recovery = LedgerRecovery(replaces_bookies=True)
    actions = recovery.step(MetadataRead(metadata, version))  # carry them out, and step it with each answer until Finish or Fail
"""
