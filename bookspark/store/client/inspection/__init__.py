"""What one bookie says of itself, the copies that it has, and what an operator has it do. Only orders change anything.

=====================  =====================================================================================================
``bookie_questions``   a bookie's status, entry logs, limbo and index
``held_ranges``        the entries that a bookie says it holds, by ledger
``copies``             the copies that a bookie has of a ledger, exactly as they lie there
=====================  =====================================================================================================

::

    from bookspark.store.client.inspection.copies import copies_on

    for found in copies_on(bookkeeper.context, bookie_id, ledger_id, [(0, 9)]):
        print(found)
"""
