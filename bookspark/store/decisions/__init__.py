"""The record of decisions: what the machines of the protocol were given in this process, and what they answered.

==============  ================================================================================================================
``seam``        the one place through which drivers make machines and ask pure functions; it records them if that is switched on
``machines``    machines that record, and what a record of a decision looks like
``recorder``    one process's record: what waits to be written, the thread that writes it, what is kept
``forms``       values of the protocol as plain lists and numbers, and back; no payload, no key, no password
``record_file``  the bytes of a record: segments, chunks, and how a torn end is told
==============  ================================================================================================================

``bookspark replay`` feeds a record to the pure code again and compares every answer (``bookspark.lab.replay``,
docs/decisions/replay.md). ::

    from bookspark.store.decisions.recorder import record_into
    from bookspark.store.decisions.seam import made

    record_into("/var/tmp/decisions", "client")  # nothing is recorded without this
    machine = made(LacRead, metadata)  # a LacRead, whose steps are recorded
"""
