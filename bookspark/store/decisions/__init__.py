"""The record of decisions: inputs and answers of this process's protocol machines.

===============  ===============================================================================
``seam``         the only place where drivers make machines and call pure functions
``machines``     machines that record, and the format of a record
``recorder``     one process's record: queue, writer thread, retention
``forms``        values of the protocol as plain lists and numbers, without payload, key or password
``record_file``  the bytes of a record: segments, chunks, detection of a torn end
===============  ===============================================================================

``bookspark replay`` feeds a record to the pure code again and compares every answer (``bookspark.lab.replay``,
docs/decisions/replay.md). ::

    from bookspark.store.decisions.recorder import record_into
    from bookspark.store.decisions.seam import made

    record_into("/var/tmp/decisions", "client")  # nothing is recorded without this
    machine = made(LacRead, metadata)  # a LacRead, whose steps are recorded
"""
