-- Garbage per entry log: bytes without a living entry: of deleted ledgers, rewritten batches and file overhead.
WITH newest AS (
  -- A ledger that is younger than the list of ledgers lives.
  SELECT MAX(last_ledger_id) AS ledger_id
  FROM (SELECT last_ledger_id FROM ledger_ids UNION ALL SELECT last_ledger_id FROM listed)
),
batches AS (
  SELECT /*+ BROADCAST(n) */ r.bookie_id, r.entry_log, r.position, MAX(r.bytes) AS bytes,
         MAX(l.ledger_id IS NOT NULL OR r.ledger_id > n.ledger_id) AS lives
  FROM index_ranges r CROSS JOIN newest n LEFT JOIN ledgers l ON l.ledger_id = r.ledger_id
  GROUP BY r.bookie_id, r.entry_log, r.position
),
uses AS (
  SELECT bookie_id, entry_log, SUM(IF(lives, bytes, 0)) AS live_bytes, SUM(IF(lives, 0, bytes)) AS of_deleted_ledgers
  FROM batches GROUP BY bookie_id, entry_log
)
SELECT e.bookie_id, e.entry_log, e.name, e.directory, e.sealed, e.rewritten, e.bytes,
       LEAST(e.bytes, COALESCE(u.live_bytes, 0)) AS live_bytes,
       GREATEST(0, e.bytes - COALESCE(u.live_bytes, 0)) AS garbage_bytes, COALESCE(u.of_deleted_ledgers, 0) AS of_deleted_ledgers
FROM entry_logs e LEFT JOIN uses u ON u.bookie_id = e.bookie_id AND u.entry_log = e.entry_log
ORDER BY garbage_bytes DESC, e.bookie_id, e.entry_log
