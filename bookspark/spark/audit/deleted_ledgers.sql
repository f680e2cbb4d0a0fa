-- Deleted ledgers: missing ledgers of a log, deleted by hand, with rows neither truncated nor offloaded. rows: 0 if unknown.
-- Readers report these rows as lost; bookspark log truncate LOG ROW gives up all rows before ROW. Without a commit ledger the
-- log can't be read on: restore its record from a backup of ZooKeeper before the bookies collect its entries.
WITH needed AS (
  SELECT c.log, c.ledger_id, 'rows' AS holds, MIN(c.position) AS first_position, MAX(c.position + c.rows) - 1 AS last_position,
         SUM(c.rows) AS rows
  FROM log_commits c JOIN logs g ON g.log = c.log
  WHERE c.rows = 0 OR c.position + c.rows > GREATEST(COALESCE(g.first_position, 0), COALESCE(g.offloaded_rows, 0))
  GROUP BY c.log, c.ledger_id
  UNION ALL
  SELECT log, ledger_id, 'commits', NULL, NULL, NULL FROM logs LATERAL VIEW EXPLODE(commit_ledgers) chain AS ledger_id
)
SELECT n.*
FROM needed n LEFT ANTI JOIN ledgers l ON l.ledger_id = n.ledger_id
-- A ledger that was there before the logs were read was deleted since, and perhaps not by hand.
LEFT ANTI JOIN ledger_ids i ON i.first_ledger_id DIV 10000 = n.ledger_id DIV 10000
 AND n.ledger_id BETWEEN i.first_ledger_id AND i.last_ledger_id
-- A ledger with a higher id is younger than the list of ledgers.
WHERE n.ledger_id <= (
  SELECT MAX(last_ledger_id) FROM (SELECT last_ledger_id FROM ledger_ids UNION ALL SELECT last_ledger_id FROM listed)
)
ORDER BY n.log, n.holds, n.first_position
