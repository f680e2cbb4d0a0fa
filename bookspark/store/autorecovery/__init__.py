"""Autorecovery: copies that were lost are made again, by processes that any host may run. A bookie's own healing is here too.

=========================  ==================================================================================
``auditor``                which bookies are lost; marks the ledgers that need repair
``worker``                 takes tasks and repairs their ledgers, several at a time
``healing``                a bookie brings back what its lossy boot lost
``own_bookie``             the bookie that heals itself, as its healing sees it
``fetching``               a bookie copies from others, because a repair asks it to
``copying``                the driver that copies entries, its bandwidth and its progress
``decommission``           takes a bookie out of the cluster for good
``stopping``               whether bookies can be stopped now
``status``                 what is still to do, for people
``process``                auditor and worker together; ``child`` runs them as a child process
``autorecovery_config``    the options
=========================  ==================================================================================

Example::

    from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
    from bookspark.store.autorecovery.process import Autorecovery
    with Autorecovery(BookKeeper("127.0.0.1:2181"), autorecovery_config(ledgers_at_once=8)) as running:
        print(running.name, "repairs what is lost")
"""
