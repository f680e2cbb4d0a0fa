"""Shared parts of all decisions about ledgers: the ledger's record, quorum arithmetic, and the language of the machines.

===================  ===========================================================================================================
``ledger_metadata``  ``LedgerMetadata``: a ledger's record and its transitions
``ledger_choices``   a creator's choices: contradictions refused, risks warned of
``quorum``           write sets, and verdicts over answers
``responses``        the three classes of answers: Positive, Negative, Unknown
``actions``          actions and events of the machines
``transitions``      tables of states and events, and the error for an unlisted pair
``sync_cursor``      synced entries of a VD ledger (volatile durability) on a bookie, as one number
``entry_ranges``     sets of entry ids, as ranges
``bookkeeper_keys``  BookKeeper's keys from a password, and a bookie's hash of them
``placement``        the rule of a cluster, and the choice of an ensemble's bookies by it
``accepted_loss``    an operator's declaration that unknown entries of a ledger are lost
===================  ===========================================================================================================

::

    from bookspark.protocol.ledger.quorum import covered, write_set

    assert write_set(entry_id=5, ensemble_size=3, write_quorum=2) == (2, 0)
    assert covered(ensemble_size=3, write_quorum=3, ack_quorum=2, positives={0, 2})  # two of three are fenced: enough
"""
