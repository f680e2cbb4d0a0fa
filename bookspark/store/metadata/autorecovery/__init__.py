"""What autorecovery keeps in the metadata store: tasks for replication workers, and the election of the auditor.

==========================  =================================================================================
``underreplication_tasks``  which ledgers lack copies, who repairs them, and the switch
``auditors``                who the auditor is, what it is told and what it reports
``votes``                   how the auditor is elected where BookKeeper's auditors take part
``change_lock``             who applies a change of the cluster
==========================  =================================================================================

Example::

    from bookspark.protocol.repair.underreplication_task import Mark, Reason
    store.underreplication.mark([Mark(42, {"bookie-1": Reason.LOST})])
    print(store.underreplication.list_tasks(), store.auditors.auditor())
"""
