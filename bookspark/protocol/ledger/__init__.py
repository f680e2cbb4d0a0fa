"""What all decisions about ledgers share: the record of a ledger, quorum arithmetic, and the language of the machines.

===================  ===========================================================================================================
``ledger_metadata``  ``LedgerMetadata``: a ledger's record, and the few ways in which it changes
``ledger_choices``   what a creator may choose, and what it is warned of
``quorum``           who holds an entry, and when answers are enough
``responses``        the three classes of answers: Positive, Negative, Unknown
``actions``          what machines ask the world to do, and what the world tells them
``transitions``      tables of states and events, and the error for what they do not list
``sync_cursor``      what a bookie has synced of a VD ledger (volatile durability), as one number
``entry_ranges``     sets of entry ids, as ranges
``bookkeeper_keys``  how BookKeeper makes keys from a password, and what a bookie keeps of them
``accepted_loss``    an operator's declaration that what can't be known of a ledger is lost
===================  ===========================================================================================================

::

    from bookspark.protocol.ledger.quorum import covered, write_set

    assert write_set(entry_id=5, ensemble_size=3, write_quorum=2) == (2, 0)
    assert covered(ensemble_size=3, write_quorum=3, ack_quorum=2, positives={0, 2})  # two of three are fenced: enough
"""
