"""Ledgers: the effect of a request on a ledger that a bookie holds. ``protocol.bookie.bookie_ledger`` decides.

===================  =================================================================================
``metadata_looks``   requests wait for the ledger's metadata: a fair order of peers
``key_meetings``     requests with another master key wait for the ledger's metadata
``held_copies``      held copies of entries: comparison with an add, durability
``lossy_boots``      losses by a crash or a lost disk, ledgers in limbo, restored entries
``control_records``  writing records to the control logs
===================  =================================================================================

``bookie.storage`` joins the parts; an example with its ``storage``::

    def answered(status: int) -> None:
        print(Status(status).name)

    storage.fence(17, master_key, answered)
"""
