"""What is to be changed of a living cluster, and which steps lead there: grow, shrink, move, restart, upgrade, replace a disk.

====================  ==========================================================================================================
``wanted``            what an operator wants, and what a change has done that nobody can see
``observed``          what is seen of a cluster: its bookies, and the fragments that each of them is named for
``steps``             the steps, and what is decided at one moment
``safety``            may a bookie go away now?
``planner``           (wanted, progress, observed) → the next safe steps, what is waited for, or why it can't be done
``foresight``         all steps of a change, if nothing befalls the cluster meanwhile
====================  ==========================================================================================================

Example::

    decision = decide(wanted, begin(wanted, observed), observed)
    for step in decision.steps:
        print(step)
"""
