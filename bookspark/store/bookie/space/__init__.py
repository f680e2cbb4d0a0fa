"""Space: returning the bytes of deleted ledgers.

======================  ============================================================
``garbage_collection``  detects deleted ledgers and forgets them
``reclaiming``          a pass over the sealed logs: rewriting and removal
``rewriting``           writes the live entries of several logs into a new log
``rewriting_process``   the process that runs ``rewriting`` beside the bookie
======================  ============================================================

An example, with the ``storage`` of ``bookie.storage`` and a metadata ``store``; ``bookie.serving.maintenance`` does the same in
the background::

    from bookspark.store.bookie.steps import run_steps

    forgotten = run_steps(storage.garbage_collection.collect(store), wait)
"""
