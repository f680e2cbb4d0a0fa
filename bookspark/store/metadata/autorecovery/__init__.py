"""Metadata of autorecovery: tasks for replication workers, and the election of the auditor.

==========================  =================================================================================
``underreplication_tasks``  ledgers that lack copies, their repairers, and the switch
``auditors``                the auditor's election, requests to it and its reports
==========================  =================================================================================

Example::

    from bookspark.protocol.repair.underreplication_task import Mark, Reason
    store.underreplication.mark([Mark(42, {"bookie-1": Reason.LOST})])
    print(store.underreplication.list_tasks(), store.auditors.auditor())
"""
