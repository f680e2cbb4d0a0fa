-- Garbage per entry log: bytes of ledgers that were deleted, beside those of ledgers that are there. Collection and rewriting
-- give the first ones back.
WITH known AS (SELECT COALESCE(MAX(ledger_id), -1) AS newest FROM ledgers)
SELECT r.bookie_id, r.entry_log, SUM(IF(l.ledger_id IS NULL AND r.ledger_id <= k.newest, r.bytes, 0)) AS garbage_bytes,
       SUM(IF(l.ledger_id IS NULL AND r.ledger_id <= k.newest, 0, r.bytes)) AS live_bytes, COUNT(DISTINCT r.ledger_id) AS ledgers
FROM index_ranges r CROSS JOIN known k LEFT JOIN ledgers l ON l.ledger_id = r.ledger_id
GROUP BY r.bookie_id, r.entry_log
ORDER BY garbage_bytes DESC, r.bookie_id, r.entry_log
