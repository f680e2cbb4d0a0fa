-- Orphans: ledgers that were created for a log in an earlier epoch and that none of its commits names, ledgers of a log that was
-- deleted, and entries of ledgers that do not exist. An orphan is recognised by its epoch, never by its age. Left out are logs
-- whose password the snapshot did not have, and logs that were deleted while it was taken: these have rows and no commits. A
-- deletion that broke off, or is under way, leaves ledgers of a deleted log: bookspark log delete LOG ends it.
SELECT l.ledger_id, 'unreferenced ledger of a log' AS kind, l.log, l.log_epoch, l.log_role, l.state,
       CAST(NULL AS BIGINT) AS entries
FROM ledgers l JOIN logs g ON g.log = l.log AND g.readable AND g.committed_epoch = g.epoch
WHERE l.log_epoch < g.epoch
  AND (g.rows = 0 OR EXISTS (SELECT 1 FROM log_commits c WHERE c.log = l.log))
  AND NOT ARRAY_CONTAINS(g.commit_ledgers, l.ledger_id)
  AND NOT EXISTS (SELECT 1 FROM log_commits c WHERE c.log = l.log AND c.ledger_id = l.ledger_id)
UNION ALL
-- Logs are read after ledgers, and a ledger is made after its log.
SELECT l.ledger_id, 'ledger of a deleted log' AS kind, l.log, l.log_epoch, l.log_role, l.state, CAST(NULL AS BIGINT)
FROM ledgers l LEFT ANTI JOIN logs g ON g.log = SUBSTRING_INDEX(l.log, '@', 1)
-- The ledgers are listed again for fragments: a deletion that ended meanwhile left none there.
LEFT SEMI JOIN fragments f ON f.ledger_id = l.ledger_id
WHERE l.log IS NOT NULL AND l.log_role IS NOT NULL
UNION ALL
SELECT c.ledger_id, 'entries of a deleted ledger' AS kind, NULL, NULL, NULL, NULL,
       SUM(c.last_entry_id - c.first_entry_id + 1)
FROM copies c LEFT ANTI JOIN ledgers l ON l.ledger_id = c.ledger_id
-- An id is given out before its ledger is made, so a lower id may be younger than the list, too. The second list has it.
LEFT ANTI JOIN fragments f ON f.ledger_id = c.ledger_id
-- A ledger with a higher id is younger than the list of ledgers.
WHERE c.ledger_id <= (
  SELECT MAX(ledger_id) FROM (SELECT ledger_id FROM ledgers UNION ALL SELECT last_ledger_id FROM listed)
)
GROUP BY c.ledger_id
ORDER BY kind, ledger_id
