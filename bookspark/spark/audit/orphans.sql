-- Orphans: ledgers of an earlier epoch of a log without a commit, ledgers of deleted logs, and entries of ledgers that do not
-- exist. Logs without their password in the snapshot are left out. bookspark log delete LOG ends a broken-off deletion.
SELECT l.ledger_id, 'unreferenced ledger of a log' AS kind, l.log, l.log_epoch, l.log_role, l.state,
       CAST(NULL AS BIGINT) AS entries
FROM ledgers l JOIN logs g ON g.log = l.log AND g.log_id = l.log_id AND g.readable AND g.committed_epoch = g.epoch
WHERE l.log_epoch < g.epoch
  AND (g.rows = 0 OR EXISTS (SELECT 1 FROM log_commits c WHERE c.log = l.log))
  AND NOT ARRAY_CONTAINS(g.commit_ledgers, l.ledger_id)
  AND NOT EXISTS (SELECT 1 FROM log_commits c WHERE c.log = l.log AND c.ledger_id = l.ledger_id)
UNION ALL
-- A ledger is made after its log. If it was there before the logs were read, its log was, too.
SELECT l.ledger_id, 'ledger of a deleted log' AS kind, l.log, l.log_epoch, l.log_role, l.state, CAST(NULL AS BIGINT)
FROM ledgers l LEFT ANTI JOIN logs g ON g.log_id = l.log_id
LEFT SEMI JOIN ledger_ids i ON i.first_ledger_id DIV 10000 = l.ledger_id DIV 10000
 AND l.ledger_id BETWEEN i.first_ledger_id AND i.last_ledger_id
WHERE l.log IS NOT NULL AND l.log_role IS NOT NULL
UNION ALL
SELECT c.ledger_id, 'entries of a deleted ledger' AS kind, NULL, NULL, NULL, NULL,
       SUM(c.last_entry_id - c.first_entry_id + 1)
FROM copies c LEFT ANTI JOIN ledgers l ON l.ledger_id = c.ledger_id
-- An id is given out before its ledger is made, so a lower id may be younger than the list, too. The records are read later.
LEFT ANTI JOIN ledger_ids i ON i.first_ledger_id DIV 10000 = c.ledger_id DIV 10000
 AND c.ledger_id BETWEEN i.first_ledger_id AND i.last_ledger_id
LEFT ANTI JOIN fragments f ON f.ledger_id = c.ledger_id
-- A ledger with a higher id is younger than the list of ledgers.
WHERE c.ledger_id <= (
  SELECT MAX(last_ledger_id) FROM (SELECT last_ledger_id FROM ledger_ids UNION ALL SELECT last_ledger_id FROM listed)
)
GROUP BY c.ledger_id
ORDER BY kind, ledger_id
