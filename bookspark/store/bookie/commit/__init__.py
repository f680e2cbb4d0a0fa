"""Commit: writes to a directory in groups, so that adds share a sync.

===================  ===================================================================
``commit_thread``    the thread of a directory, and the loop's own quick commits
``group_writer``     file operations for a group, and the handling of failures
``commit_items``     items of the queue
``completions``      the storage's answers
===================  ===================================================================

An example, with a ``directory`` (``holdings.log_directory.LogDirectory``) that is in use::

    from bookspark.store.bookie.commit.commit_items import Barrier
    from bookspark.store.bookie.commit.completions import ignore

    directory.commit.submit(Barrier(ignore))
"""
