"""Space: getting back what deleted ledgers took.

======================  ==================================================================
``garbage_collection``  finding the ledgers that were deleted, and forgetting them
``reclaiming``          a pass over the sealed logs: rewriting and removing
``rewriting``           writing one new log of what is live in others
``rewriting_process``   the process that does it beside the bookie
======================  ==================================================================

An example, with the ``storage`` of ``bookie.storage`` and a metadata ``store``; ``bookie.serving.maintenance`` does the same in
the background::

    from bookspark.store.bookie.steps import run_steps

    forgotten = run_steps(storage.garbage_collection.collect(store), wait)
"""
