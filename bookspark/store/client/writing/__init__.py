"""Writing a ledger: the handle that users append to, and the driver that steps the protocol's writer for it.

=======================  =======================================================================================================
``ledger_handle``        ``LedgerHandle``, an open ledger for writing; its methods run in callers' threads
``ledger_handle_adv``    ``LedgerHandleAdv``, the same with entry ids that the caller gives
``sole_appender``        appends of one caller that orders them itself
``back_pressure``        what an append waits for before it gets an id
``ledger_driver``        steps the protocol's ``LedgerWriter`` in the I/O thread, and does what it asks for
``shared_with_callers``  what a handle and its driver both look at
``futures``              the futures of appends and syncs
``outgoing``             the appends that wait for a frame
``payloads``             payloads on their way into a frame
``kept_frames``          the frames that may have to be sent again
=======================  =======================================================================================================

::

    with bookkeeper.create_ledger(write_quorum=3, ack_quorum=2) as ledger:
        futures = [ledger.append_async(b"%d" % i) for i in range(1000)]
        assert futures[-1].result() == 999
        assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed == 999
"""
