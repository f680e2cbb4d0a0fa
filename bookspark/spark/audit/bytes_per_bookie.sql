-- Bytes per bookie: indexed bytes of each bookie, and the balance between them.
WITH batches AS (
  SELECT bookie_id, ledger_id, SUM(last_entry_id - first_entry_id + 1) AS entries, MAX(bytes) AS bytes
  FROM (SELECT /*+ REPARTITION(bookie_id, ledger_id) */ * FROM index_ranges)
  GROUP BY bookie_id, ledger_id, entry_log, position
),
-- Summed up before anything is joined: there are as many ledgers as one likes, and few bookies.
sums AS (
  SELECT bookie_id, COUNT(*) AS ledgers, SUM(entries) AS entries, SUM(bytes) AS bytes
  FROM (SELECT bookie_id, ledger_id, SUM(entries) AS entries, SUM(bytes) AS bytes FROM batches GROUP BY bookie_id, ledger_id)
  GROUP BY bookie_id
),
logs AS (
  SELECT bookie_id, COUNT(*) AS entry_logs FROM (SELECT DISTINCT bookie_id, entry_log FROM index_ranges) GROUP BY bookie_id
)
SELECT /*+ BROADCAST(s, l) */ b.bookie_id, b.state, b.address, COALESCE(s.ledgers, 0) AS ledgers,
       COALESCE(s.entries, 0) AS entries, COALESCE(s.bytes, 0) AS bytes, COALESCE(l.entry_logs, 0) AS entry_logs
FROM bookies b LEFT JOIN sums s ON s.bookie_id = b.bookie_id LEFT JOIN logs l ON l.bookie_id = b.bookie_id
ORDER BY b.bookie_id
