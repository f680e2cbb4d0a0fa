"""Offline: what can be done with the directories of a bookie that is stopped.

==============  =========================================================================
``inspection``  looking into them, and making the index anew
``scrub``       reading and checking every byte
``power_loss``  cutting what was not synced, for tests
==============  =========================================================================

An example::

    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import Inspection

    for log in Inspection(RealFileSystem(), ["/data/bookie"]).logs():
        print(log.number, log.size, log.live)
"""
