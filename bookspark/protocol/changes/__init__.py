"""Changes of a living cluster, and the steps that lead there: grow, shrink, move, restart, upgrade, replace a disk.

====================  ==========================================================================================================
``wanted``            the operator's wish, and progress that can't be observed
``observed``          the observed cluster: its bookies, and the fragments that name each of them
``steps``             the steps, and the decision at one moment
``safety``            may a bookie go away now?
``planner``           (wanted, progress, observed) → the next safe steps, the conditions to wait for, or the refusal
``foresight``         all steps of a change, if nothing else happens to the cluster meanwhile
====================  ==========================================================================================================

Example::

    decision = decide(wanted, begin(wanted, observed), observed)
    for step in decision.steps:
        print(step)
"""
