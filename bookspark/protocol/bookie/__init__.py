"""What a bookie decides by itself: whom it answers what, whether it may serve, and what it may throw away.

======================  ========================================================================================================
``bookie_ledger``       one ledger on one bookie: who may add, what fencing changes, what an absent entry is answered
``first_request``       whether a request without an entry may make a ledger known
``bookie_boot``         what a lossy boot forbids before the bookie serves again (phase one)
``control_copies``      what the copies of a control log tell together, when some are damaged
``reach``               whether a directory is an older copy of itself
``cookie``              who the bookie is, and whether its directories are its own
``ReadOnlySwitch``    whether an operator made the bookie read-only
``bookie_process``        which ledger ids the metadata has forgotten that it gave out
``garbage_collection``  which ledgers were deleted, and may be thrown away
``lease``               who looks after a bookie's process, and when it has to end
======================  ========================================================================================================

Example::

    from bookspark.protocol.bookie.bookie_ledger import BookieLedger

    ledger = BookieLedger(ledger_id=7)
    ledger.fence(master_key=b"key")
    assert ledger.admit_add(b"key", recovery=False).response != ledger.admit_add(b"key", recovery=True).response
"""
