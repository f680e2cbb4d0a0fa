-- Bytes per bookie: what its index holds, and how even the load is.
SELECT b.bookie_id, b.state, b.address, COUNT(DISTINCT r.ledger_id) AS ledgers,
       COALESCE(SUM(r.last_entry_id - r.first_entry_id + 1), 0) AS entries, COALESCE(SUM(r.bytes), 0) AS bytes,
       COUNT(DISTINCT r.entry_log) AS entry_logs
FROM bookies b LEFT JOIN index_ranges r ON r.bookie_id = b.bookie_id
GROUP BY b.bookie_id, b.state, b.address
ORDER BY b.bookie_id
