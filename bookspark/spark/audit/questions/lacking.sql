-- Lacking: bookies that are up and lack confirmed entries that their fragment assigns to them, by ledger. Left out are
-- fragments that are still written to, which their writer repairs, and ledgers that a bookie has in limbo, which it heals
-- itself.
WITH missing AS (
  SELECT e.ledger_id, e.first_entry_id, e.last_entry_id, e.entries, bookie_id
  FROM entry_ranges e
  JOIN fragments f ON f.ledger_id = e.ledger_id AND f.fragment = e.fragment AND f.last_entry_id IS NOT NULL
  LATERAL VIEW EXPLODE(e.missing_on) missing AS bookie_id
),
ours AS (
  SELECT /*+ BROADCAST(b) */ m.* FROM missing m JOIN bookies b ON b.bookie_id = m.bookie_id AND b.state <> 'down'
  LEFT ANTI JOIN limbo i ON i.bookie_id = m.bookie_id AND i.ledger_id = m.ledger_id
)
SELECT ledger_id, SORT_ARRAY(COLLECT_SET(bookie_id)) AS bookies, MIN(first_entry_id) AS first_entry_id,
       MAX(last_entry_id) AS last_entry_id, SUM(entries) AS copies
FROM ours
GROUP BY ledger_id
ORDER BY ledger_id
