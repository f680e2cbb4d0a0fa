"""The clients in the simulation: each hands events to a real machine of the protocol, and makes its actions part of the world.

===============  ===============================================================================================================
``client``       what all clients have
``writer``       the application that created the ledger and appends to it
``recoverer``    somebody who opens the ledger, and so recovers it
``reader``       a tailing reader: LAC reads, long polls and reads of entries
``repair``       autorecovery of the ledger, and a bookie's healing
===============  ===============================================================================================================

Example::

    from bookspark.lab.simulation.clients.recoverer import RecovererClient

    recoverer = RecovererClient()
    (begin,) = recoverer.choices()  # what its user may do now
    sends, told = recoverer.step(begin, options)
"""
