"""Readers and recoveries under schedules that a seed draws: the machines that ship, over bookies that lack and refuse.

================  ======================================================================================================
``bookies``       ledgers that are not closed, and bookies with what ails them
``plainly``       what a recovery has to do, one answer after the other
``recoveries``    one recovery, beside a writer that lives and others who change the record
``reads``         one read of a range of entries
``lacs``          one read of the LAC (last add confirmed), or one long poll
``records``       records as they change, and sync cursors
``misfits``       events that can't be
``run``           one schedule of a kind
================  ======================================================================================================
"""
