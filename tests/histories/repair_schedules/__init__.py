"""Repair of a ledger under schedules drawn from a seed: the real machines over bookies that lack, refuse or do not answer.

================  ======================================================================================================
``drawing``       ledgers, and bookies with faults
``truth``         the entries that bookies could give and take, checked from outside
``driving``       carries out a machine's requests in any order, and judges each step
``strays``        unrequested answers
``audits``        decisions of an auditor, against a twin that decides entry by entry
``lost_entries``  a bookie's lost copies, against a twin kept id by id
``run``           one schedule: the repair, and the laws at its end
================  ======================================================================================================
"""
