-- Missing entries: confirmed entries that no bookie of their write set holds. Bookies that are down count as they were last
-- seen holding nothing: with them back, the entries may be there again.
SELECT ledger_id, log, state, fragment, first_entry_id, last_entry_id, entries, missing_on
FROM entry_ranges
WHERE replication_factor = 0
ORDER BY ledger_id, first_entry_id
