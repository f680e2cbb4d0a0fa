"""Connections to bookies: every request gets exactly one answer, in time.

=====================  =====================================================================================================
``ledger_requests``    requests about one ledger as frames, and answers as events of the protocol's machines
``mailbox``            where a blocking call waits for its events
``connections``        one connection for each bookie, found by bookie id, made again when it is lost
``bookie_connection``  one TCP connection: requests out, pipelined; deadlines; a bookie that is slow or hangs
``hello``              the first exchange: both sides say who they are, and the client proves that it may ask
``traffic``            what passes, counted for metrics
``io_loop``            the one I/O thread of a process
=====================  =====================================================================================================

::

    from bookspark.store.client.network.io_loop import IoLoop

    io = IoLoop("example")
    io.submit(print, "in the I/O thread")
    io.stop()
"""
