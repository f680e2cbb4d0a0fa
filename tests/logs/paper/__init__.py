"""A log on paper: its record, its lanes, and what is counted of them, against the same kept as plain lists.

What ships calls these functions between many calls to a cluster, and comes to some of their cases seldom
(``tests.logs.schedules``). Here nothing lies between, so a seed takes about a millisecond.

==============  =============================================================================================================
``lane``        one lane's record: owners, batch writes, its chain, what is truncated, its end
``index``       the index of lanes, blocks of those that ended, and places in the log
``counts``      ranges, headers, and shares of a limit
``run``         one schedule of each
==============  =============================================================================================================
"""
