-- Unreadable copies: indexed entries that the bookie could not read during the snapshot. They count as no copies in the other
-- audits.
SELECT e.ledger_id, l.log, l.state, e.bookie_id, e.first_entry_id AS first_entry_looked_at, e.unreadable AS entries
FROM entry_checksums e JOIN ledgers l ON l.ledger_id = e.ledger_id
WHERE e.unreadable > 0
ORDER BY e.ledger_id, e.first_entry_id, e.bookie_id
