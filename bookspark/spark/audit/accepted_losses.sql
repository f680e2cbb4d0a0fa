-- Accepted losses: losses that operators accepted to close ledgers. Kind entries: confirmed entries that no bookie returned.
-- end: unknown whether entry first_entry_id existed. Repair and the other audits skip them.
SELECT a.ledger_id, l.log, a.kind, a.first_entry_id, a.last_entry_id, a.bookies, a.accepted_by, a.accepted_at, a.named
FROM accepted_losses a LEFT JOIN ledgers l ON l.ledger_id = a.ledger_id
WHERE a.kind <> 'fence'
ORDER BY a.ledger_id, a.first_entry_id
