"""Decisions of a ledger's writer: adds, acknowledgements, ensemble changes and the close.

===================  ===========================================================================================================
``writer``           ``LedgerWriter``, the machine: its tables of states and answers, its adds, the close
``writer_events``    events from the user, the clock and the bookies
``writer_state``     a writer's states, its open question, and its pending adds
``writer_cursors``   a writer's progress: released, confirmed, acknowledged, pushed; acks of replaced bookies are taken back
``given_ids``        the order of appends whose caller chooses the entry ids
``writer_errors``    errors of a writer that ends without a close
``ensemble_change``  failed bookies, the time of their replacement, and the change of the record
``durability``       durable adds: PD (persistent) and VD (volatile) ledgers
``replication``      meaning of the write quorum: best effort or guaranteed
``explicit_lac``     LACs (last add confirmed) without an entry, and their repetition
===================  ===========================================================================================================

::

    from bookspark.protocol.writing.writer import LedgerWriter
    from bookspark.protocol.writing.writer_events import Append

    writer = LedgerWriter(metadata, version)
    actions = writer.step(Append(1, len(payload)))  # carry them out, and step it with each answer until Finish or Fail
"""
