-- Missing entries: confirmed entries without a known copy on their write set. Bookies that are down may hold them. A range is
-- every step-th entry from first to last.
SELECT ledger_id, log, state, fragment, first_entry_id, last_entry_id, step, entries, missing_on
FROM entry_ranges
WHERE replication_factor = 0 AND SIZE(missing_on) > 0
ORDER BY ledger_id, first_entry_id
