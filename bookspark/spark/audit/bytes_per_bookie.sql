-- Bytes per bookie: what the index of each bookie holds, and how even the load is.
WITH batches AS (
  SELECT bookie_id, ledger_id, entry_log, SUM(last_entry_id - first_entry_id + 1) AS entries, MAX(bytes) AS bytes
  FROM index_ranges GROUP BY bookie_id, ledger_id, entry_log, position
)
SELECT b.bookie_id, b.state, b.address, COUNT(DISTINCT r.ledger_id) AS ledgers,
       COALESCE(SUM(r.entries), 0) AS entries, COALESCE(SUM(r.bytes), 0) AS bytes,
       COUNT(DISTINCT r.entry_log) AS entry_logs
FROM bookies b LEFT JOIN batches r ON r.bookie_id = b.bookie_id
GROUP BY b.bookie_id, b.state, b.address
ORDER BY b.bookie_id
