"""Readers and recoveries under schedules drawn from a seed: the real machines over bookies that lack and refuse entries.

================  ======================================================================================================
``bookies``       open ledgers, and bookies with faults
``plainly``       the steps of a recovery, one answer after the other
``recoveries``    one recovery, beside a live writer and other clients that change the record
``reads``         one read of a range of entries
``lacs``          one read of the LAC (last add confirmed), or one long poll
``records``       changes of records, and sync cursors
``misfits``       impossible events
``run``           one schedule of a kind
================  ======================================================================================================
"""
