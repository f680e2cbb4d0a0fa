"""Searches for an order of events that violates an invariant.

====================  ==========================================================================================================
``exhaustive``        every order within the bounds of the options, breadth first
``successors``        the states after a state, as lookups
``reductions``        which states an exhaustive search need not tell apart
``random_schedules``  random schedules, longer than an exhaustive search can be
``calm``              whether all that was begun ends, once nothing goes wrong any more
``drawn_options``     the options of a random schedule
``rare_states``       which options reach the states in which events are that rarely come, as it was measured
``coverage``          which pairs of a state and an event schedules have met
``uncollected``       a search runs without the collector of cyclic garbage
====================  ==========================================================================================================

Example::

    from bookspark.lab.simulation.search.random_schedules import RandomSchedules

    result = RandomSchedules({"crashes": 1}).run(schedules=100, seed=1)
    assert result.failure is None, result.failure.violation
"""
