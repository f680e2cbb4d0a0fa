"""Commit: writes to a directory in groups, so that adds share a sync.

===================  ========================================================================================
``commit_thread``    the thread of a directory, its items and file operations, the loop's own quick commits
``completions``      the storage's answers
===================  ========================================================================================

An example, with a ``directory`` (``holdings.log_directory.LogDirectory``) that is in use::

    from bookspark.store.bookie.commit.commit_thread import Barrier
    from bookspark.store.bookie.commit.completions import ignore

    directory.commit.submit(Barrier(ignore))
"""
