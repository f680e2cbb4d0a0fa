"""Ledgers: what a request does to a ledger that a bookie holds. ``protocol.bookie.bookie_ledger`` decides.

===================  =================================================================================
``first_requests``   fences and explicit LACs of ledgers that the bookie never saw: the metadata is asked first
``unsure_adds``      adds to ledgers whose fence may be lost: the metadata is asked first
``held_copies``      entries that are held already: are they the same, and are they durable?
``lossy_boots``      what a crash or a lost disk took, limbo, and what of it is back
``control_records``  writing records to the control logs
``statuses``         the status on the wire for each answer
===================  =================================================================================

The parts are put together in ``bookie.storage``; an example with its ``storage``::

    def answered(status: int) -> None:
        print(Status(status).name)

    storage.fence(17, master_key, answered)
"""
