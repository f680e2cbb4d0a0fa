"""Offline tools for the directories of a stopped bookie.

==============  ================================================
``inspection``  shows logs, batches and index; rebuilds the index
``scrub``       reads and checks every byte
``power_loss``  cuts unsynced bytes, for tests
==============  ================================================

An example::

    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import Inspection

    for log in Inspection(RealFileSystem(), ["/data/bookie"]).logs():
        print(log.number, log.size, log.live)
"""
