"""Connections to bookies: every request gets exactly one answer, in time.

=====================  =====================================================================================================
``ledger_requests``    requests about one ledger as frames, and answers as events of the protocol's machines
``mailbox``            queue of events with a deadline, for a blocking call
``connections``        one connection to each bookie, by bookie id, renewed after a loss
``bookie_connection``  one TCP connection: pipelined requests; deadlines; slow and hanging bookies
``hello``              the first exchange: identity of both sides, and the client's proof of a secret
``free_space``         free space of bookies, as one process knows it
``traffic``            counters for metrics
``io_loop``            the one I/O thread of a process
=====================  =====================================================================================================

::

    from bookspark.store.client.network.io_loop import IoLoop

    io = IoLoop("example")
    io.submit(print, "in the I/O thread")
    io.stop()
"""
