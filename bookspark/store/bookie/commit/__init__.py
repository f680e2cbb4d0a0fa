"""Commit: writing to a directory in groups, so that adds share a sync.

===================  ===================================================================
``commit_thread``    the thread of a directory, and when the loop writes itself
``group_writer``     what is done to the disk for a group, and what a failure means
``commit_items``     what can be queued
``completions``      how the storage answers
===================  ===================================================================

An example, with a ``directory`` (``holdings.log_directory.LogDirectory``) that is in use::

    from bookspark.store.bookie.commit.commit_items import Barrier
    from bookspark.store.bookie.commit.completions import ignore

    directory.commit.submit(Barrier(ignore))
"""
