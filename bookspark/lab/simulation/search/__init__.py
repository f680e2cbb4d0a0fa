"""Searches for an order of events that violates an invariant.

====================  ==========================================================================================================
``exhaustive``        every order within the bounds of the options, breadth first; states that count as equal
``random_schedules``  random schedules, longer than an exhaustive search can be
``calm``              whether all begun operations end without further faults
``coverage``          pairs of a state and an event met by schedules
``uncollected``       a search without the collector of cyclic garbage
====================  ==========================================================================================================

Example::

    from bookspark.lab.simulation.search.random_schedules import RandomSchedules

    result = RandomSchedules({"crashes": 1}).run(schedules=100, seed=1)
    assert result.failure is None, result.failure.violation
"""
