-- Accepted losses: what operators gave up so that ledgers could be closed (bookspark ledger recover --accept-loss). Kind entries:
-- confirmed entries that no bookie returned. end: it is not known whether there was an entry first_entry_id; the ledger ends
-- before it. Repair leaves these entries out on these bookies, and so do the other audits.
SELECT a.ledger_id, l.log, a.kind, a.first_entry_id, a.last_entry_id, a.bookies, a.accepted_by, a.accepted_at, a.named
FROM accepted_losses a LEFT JOIN ledgers l ON l.ledger_id = a.ledger_id
WHERE a.kind <> 'fence'
ORDER BY a.ledger_id, a.first_entry_id
