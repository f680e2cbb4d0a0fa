"""A bookie's own decisions: answers to requests, permission to serve, and garbage collection.

======================  ========================================================================================================
``bookie_ledger``       one ledger on one bookie: admitted adds, the effect of a fence, the answer for an absent entry
``first_request``       may a request without an entry make a ledger known?
``key_meeting``         two master keys for one ledger: the metadata decides
``bookie_boot``         prohibitions after a lossy boot, before the bookie serves again (phase one)
``control_copies``      are the copies of a control log complete together, when some are damaged?
``reach``               is a directory an older copy of itself?
``cookie``              the bookie's identity, and its directories
``read_only_switch``    the operator's switch to read-only
``lost_records``        ledger ids that the metadata gave out and has forgotten
``garbage_collection``  deleted ledgers, which may be thrown away
``unnamed_copies``      copies that the metadata does not name, which may be thrown away
``address_rates``       rates of what single addresses may cause
``peer_memory``         memory that peers make the bookie hold, and the deadline of a frame
``lease``               the holder of a bookie's process, and the end of a process without one
======================  ========================================================================================================

Example::

    from bookspark.protocol.bookie.bookie_ledger import BookieLedger

    ledger = BookieLedger(ledger_id=7)
    ledger.fence(master_key=b"key")
    assert ledger.admit_add(b"key", recovery=False).response != ledger.admit_add(b"key", recovery=True).response
"""
