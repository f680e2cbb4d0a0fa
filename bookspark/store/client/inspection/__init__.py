"""Inspection of single bookies: their status, index and copies. Changes nothing.

=====================  =====================================================================================================
``bookie_questions``   a bookie's status, entry logs, limbo and index
``held_ranges``        ranges of entries in a bookie's index, by ledger
``copies``             a bookie's copies of a ledger, exactly as stored
=====================  =====================================================================================================

::

    from bookspark.store.client.inspection.copies import copies_on

    for found in copies_on(bookkeeper.context, bookie_id, ledger_id, [(0, 9)]):
        print(found)
"""
