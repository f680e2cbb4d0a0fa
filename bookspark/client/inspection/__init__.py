"""What one bookie says of itself, and the copies that it has. Nothing here changes anything.

=====================  =====================================================================================================
``bookie_questions``   a bookie's status, entry logs, limbo and index
``copies``             the copies that a bookie has of a ledger, exactly as they lie there
=====================  =====================================================================================================

::

    from bookspark.client.inspection.copies import copies_on

    for found in copies_on(bookkeeper.context, bookie_id, ledger_id, [(0, 9)]):
        print(found)
"""
