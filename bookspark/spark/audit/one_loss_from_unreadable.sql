-- One loss from unreadable: confirmed entries whose only copy on a bookie that is up is on this bookie. Copies that are known to be
-- unreadable do not count. readability: when all copies of the bookie were last read. Ledgers with a write quorum of 1 are left
-- out.
SELECT up[0] AS bookie_id, COUNT(DISTINCT ledger_id) AS ledgers, SUM(entries) AS entries,
       SLICE(SORT_ARRAY(COLLECT_SET(ledger_id)), 1, 20) AS first_ledgers,
       COALESCE(CONCAT('checked at ', FIRST(r.read_at)), 'not checked') AS readability
FROM (
  SELECT ledger_id, entries, write_quorum, FILTER(held_by, bookie -> NOT ARRAY_CONTAINS(d.bookies, bookie)) AS up
  FROM entry_ranges
  CROSS JOIN (SELECT COLLECT_LIST(bookie_id) AS bookies FROM bookies WHERE state = 'down') d
)
LEFT JOIN readability r ON r.bookie_id = up[0]
WHERE SIZE(up) = 1 AND write_quorum > 1
GROUP BY up[0]
ORDER BY entries DESC, up[0]
