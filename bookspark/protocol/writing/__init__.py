"""Decisions of a ledger's writer: adds, acknowledgements, ensemble changes and the close.

===================  =====================================================================================
``writer``           ``LedgerWriter``, the machine: states and answers, adds, progress, syncs, the close
``writer_events``    events from the user, the clock and the bookies
``given_ids``        the order of appends whose caller chooses the entry ids
``ensemble_change``  failed bookies, the time of their replacement, and the change of the record
``replication``      meaning of the write quorum: best effort or guaranteed
===================  =====================================================================================

::

    from bookspark.protocol.writing.writer import LedgerWriter
    from bookspark.protocol.writing.writer_events import Append

    writer = LedgerWriter(metadata, version)
    actions = writer.step(Append(1, len(payload)))  # carry them out, and step it with each answer until Finish or Fail
"""
