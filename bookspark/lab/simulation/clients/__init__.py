"""Clients in the simulation: each hands events to a real machine of the protocol, and carries its actions out in the world.

===============  ===============================================================================================================
``client``       the common part of all clients
``writer``       the application that created the ledger and appends to it
``recoverer``    a client that opens the ledger, and so recovers it
``reader``       a tailing reader: LAC reads, long polls and reads of entries
``repair``       autorecovery of the ledger, and a bookie's healing
===============  ===============================================================================================================

Example::

    from bookspark.lab.simulation.clients.recoverer import RecovererClient

    recoverer = RecovererClient()
    (begin,) = recoverer.choices()  # what its user may do now
    sends, told = recoverer.step(begin, options)
"""
