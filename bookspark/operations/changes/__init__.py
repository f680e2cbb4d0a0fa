"""Execution of changes of a live cluster; ``protocol.changes`` decides them.

=================  ============================================================================
``change_record``  record of the change in the metadata store: wanted state and progress
``looking``        looks at the cluster's bookies, fragments and tasks
``hands``          interface for restarts of processes and replacements of disks
``applying``       observe, decide, record, act; repeated until the change is complete
=================  ============================================================================

Options: ``bookspark.store.changes_config``.

Example::

    with Applying(bookkeeper, AskOperator(print)) as applying:
        applying.begin(Wanted(restart=frozenset(bookkeeper.metadata.list_cookies())))
        applying.run()
"""
