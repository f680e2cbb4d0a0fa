-- Missing entries: confirmed entries that no bookie of their write set is known to hold. A bookie that is down tells nothing:
-- when it is back, the entries may be there again. What an operator accepted as lost is left out. A range is every step-th
-- entry from its first to its last.
SELECT ledger_id, log, state, fragment, first_entry_id, last_entry_id, step, entries, missing_on
FROM entry_ranges
WHERE replication_factor = 0 AND SIZE(missing_on) > 0
ORDER BY ledger_id, first_entry_id
