"""Changes of a living cluster are carried out here; ``protocol.changes`` decides them.

====================  ==========================================================================================================
``changes_config``    options of the one who applies a change
``change_record``     the change that is under way, in the metadata store: what is wanted, and how far it is
``looking``           what is seen of the cluster
``hands``             who restarts a process, and puts a disk in
``applying``          look, decide, note, do; again and again, until the change is complete
====================  ==========================================================================================================

Example::

    with Applying(bookkeeper, AskOperator(print)) as applying:
        applying.begin(Wanted(restart=frozenset(bookkeeper.metadata.list_cookies())))
        applying.run()
"""
