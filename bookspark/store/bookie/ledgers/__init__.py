"""Ledgers: what a request does to a ledger that a bookie holds. ``protocol.bookie.bookie_ledger`` decides.

===================  =================================================================================
``adds``             adds: admitted or refused, placed in a log, queued for the disk
``first_requests``   fences and explicit LACs of ledgers that the bookie never saw: the metadata is asked first
``unsure_adds``      adds to ledgers whose fence may be lost: the metadata is asked first
``comparisons``      adds that wait until they are compared with the copies that are held
``held_copies``      entries that are held already: are they the same, and are they durable?
``fencing``          fences
``explicit_lacs``    LACs (last add confirmed) that come without an entry
``volatile_syncs``   SYNC: the writer of a volatile ledger asks for a sync
``losses``           making durable what was found unreadable
``lossy_boots``      what a crash or a lost disk took, limbo, and what of it is back
``read_only_switch``  an operator's switch: the bookie takes no adds
``control_records``  writing records to the control logs
``statuses``         the status on the wire for each answer
===================  =================================================================================

The parts are put together in ``bookie.storage``; an example with its ``storage``::

    def answered(status: int) -> None:
        print(Status(status).name)

    storage.fence(17, master_key, answered)
"""
