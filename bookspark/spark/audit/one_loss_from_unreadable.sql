-- One loss from unreadable: confirmed entries with their only readable copy on this bookie, of all bookies that are up.
-- readability: when all copies of the bookie were last read. Ledgers with write quorum 1 are left out.
WITH lone AS (
  SELECT GET(up, 0) AS bookie_id, ledger_id, SUM(entries) AS entries
  FROM (
    SELECT /*+ BROADCAST(d) */ ledger_id, entries, write_quorum,
           FILTER(held_by, bookie -> NOT ARRAY_CONTAINS(d.bookies, bookie)) AS up
    FROM entry_ranges
    CROSS JOIN (SELECT COLLECT_LIST(bookie_id) AS bookies FROM bookies WHERE state = 'down') d
  )
  WHERE SIZE(up) = 1 AND write_quorum > 1
  GROUP BY GET(up, 0), ledger_id
),
-- Of a bookie with very many such ledgers no task holds more ids than these.
firsts AS (
  SELECT bookie_id, SORT_ARRAY(COLLECT_LIST(ledger_id)) AS first_ledgers
  FROM (SELECT bookie_id, ledger_id, ROW_NUMBER() OVER (PARTITION BY bookie_id ORDER BY ledger_id) AS number FROM lone)
  WHERE number <= 20
  GROUP BY bookie_id
),
sums AS (SELECT bookie_id, COUNT(*) AS ledgers, SUM(entries) AS entries FROM lone GROUP BY bookie_id)
SELECT s.bookie_id, s.ledgers, s.entries, f.first_ledgers,
       COALESCE(CONCAT('checked at ', r.read_at), 'not checked') AS readability
FROM sums s JOIN firsts f ON f.bookie_id = s.bookie_id LEFT JOIN readability r ON r.bookie_id = s.bookie_id
ORDER BY s.entries DESC, s.bookie_id
