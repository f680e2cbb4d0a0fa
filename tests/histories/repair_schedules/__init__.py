"""A ledger's repair under schedules that a seed draws: the machines that ship, over bookies that lack, refuse and are silent.

================  ======================================================================================================
``drawing``       ledgers, and bookies with what ails them
``truth``         what the bookies could give and take, looked at from outside
``driving``       carries out what a machine asks for, in any order, and judges each step
``strays``        answers that nobody asked for
``audits``        what an auditor decides, against the same decided entry by entry
``lost_entries``  what a bookie knows of its lost copies, against the same kept id by id
``run``           one schedule: what is repaired, and what must hold at its end
================  ======================================================================================================
"""
