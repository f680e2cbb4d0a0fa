"""What a ledger's writer decides: who gets an entry, when it is acknowledged, who replaces a failed bookie, how it closes.

===================  ===========================================================================================================
``writer``           ``LedgerWriter``, the machine: its tables of states and answers, ensemble changes, the close
``writer_events``    what the world tells a writer
``writer_state``     the states of a writer, what it has asked, and its pending adds
``writer_cursors``   how far a writer is: released, confirmed, acknowledged, pushed; acks of replaced bookies are taken back
``given_ids``        the order of appends whose ids their caller gives
``writer_errors``    what a writer ends with when it ends without a close
``ensemble_change``  which bookies have failed, when they are replaced, and how the record is changed
``durability``       when an add counts as durable: PD (persistent) and VD (volatile) ledgers
``replication``      what write quorum means: best effort or guaranteed
``explicit_lac``     when a LAC (last add confirmed) is told without an entry, and to whom again
===================  ===========================================================================================================

::

    from bookspark.protocol.writing.writer import LedgerWriter
    from bookspark.protocol.writing.writer_events import Append

    writer = LedgerWriter(metadata, version)
    actions = writer.step(Append(1, len(payload)))  # carry them out, and step it with each answer until Finish or Fail
"""
