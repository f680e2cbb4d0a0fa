"""Decisions about missing copies: lost bookies, marked ledgers, and the repair of a ledger.

=========================  =====================================================================================================
``audit_plan``             an auditor's lost bookies and the marks of ledgers
``underreplication_task``  a ledger's task, and the merge of marks into it
``replication_plan``       lacking entries, planned copies, and permission to fence a writer
``ledger_replication``     one ledger's lost bookies are replaced by others that hold the copies
``bookie_healing``         a ledger in limbo is recovered and copied back to its bookie (phase two of a lossy boot)
``entry_copying``          copies of entries from a ledger's bookies to others
``stopping``               dangers of stopping bookies
=========================  =====================================================================================================

Example::

    from bookspark.protocol.repair.replication_plan import lacks

    for copy in lacks(metadata, "bookie-1", held=[(0, 99)]):
        print(f"entries {copy.first}..{copy.last} are missing on {copy.target}")
"""
