"""Writing a ledger: the handle that users append to, and the driver that steps the protocol's writer for it.

=================  =============================================================================
``ledger_handle``  ``LedgerHandle``, an open ledger for writing; its methods run in callers' threads
``ledger_driver``  steps the protocol's ``LedgerWriter`` in the I/O thread, and carries out its actions
``futures``        the futures of appends and syncs
``payloads``       payloads on their way into a frame
=================  =============================================================================

::

    with bookkeeper.create_ledger(write_quorum=3, ack_quorum=2) as ledger:
        futures = [ledger.append_async(b"%d" % i) for i in range(1000)]
        assert futures[-1].result() == 999
        assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed == 999
"""
