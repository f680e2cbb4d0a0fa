"""A bookie on paper: its directories for schedules of boots, and what it decides, against the same kept id by id.

What ships calls these decisions between many other steps, and comes to some of their cases seldom (``tests.bookie.boots``,
``histories``). Here nothing lies between, so a seed takes about a millisecond.

===================  ========================================================================================================
``directories``      a bookie's directories, for ``tests.bookie.boots``
``one_ledger``       one ledger: who may add, fences, LACs (last add confirmed), limbo, lost copies
``plain_ledger``     what is so of one ledger, as plain sets
``answers``          what is answered of entries that are not there
``lossy_boots``      marks, phase one, doubts about fences and absence
``copies``           what copies of a control log tell together
``garbage``          deleted ledgers, and ids of which the metadata has forgotten that it gave them out
``run``              one schedule of each
===================  ========================================================================================================
"""
