"""What is decided when copies are missing: who is lost, what is marked, and how a ledger gets its copies back.

=========================  =====================================================================================================
``audit_plan``             what an auditor marks of a ledger
``underreplication_task``  what a ledger's task says, and how marks are merged into it
``replication_plan``       which entries a bookie lacks, what is copied where, and when a writer may be fenced
``ledger_replication``     one ledger's lost bookies are replaced by others that hold the copies
``bookie_healing``         one ledger that a bookie has in limbo is recovered and copied back to it (phase two of a lossy boot)
``entry_copying``          entries are copied from a ledger's bookies to others
``stopping``               what would break if bookies were stopped
=========================  =====================================================================================================

Example::

    from bookspark.protocol.repair.replication_plan import lacks

    for copy in lacks(metadata, "bookie-1", held=[(0, 99)]):
        print(f"entries {copy.first}..{copy.last} are missing on {copy.target}")
"""
