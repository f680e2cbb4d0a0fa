"""Autorecovery: repair of lost copies, by processes on any host; and a bookie's own healing.

=========================  ==================================================================================
``auditor``                finds lost bookies and marks ledgers that need repair
``worker``                 takes tasks and repairs their ledgers, several at a time
``healing``                a bookie restores the losses of its lossy boot
``own_bookie``             the healing thread's access to its bookie
``fetching``               a bookie copies entries from others at a repair's request
``other_copies``           a bookie asks others what they hold before it collects an unnamed copy
``copying``                the driver that copies entries, its bandwidth and its progress
``decommission``           takes a bookie out of the cluster for good
``stopping``               whether bookies can be stopped now
``status``                 outstanding work, for people
``process``                auditor and worker together; ``child`` runs them as a child process
``autorecovery_config``    the options
=========================  ==================================================================================

Example::

    from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
    from bookspark.store.autorecovery.process import Autorecovery
    with Autorecovery(BookKeeper("127.0.0.1:2181"), autorecovery_config(ledgers_at_once=8)) as running:
        print(running.name, "repairs what is lost")
"""
