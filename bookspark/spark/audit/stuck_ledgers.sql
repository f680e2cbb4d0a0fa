-- Stuck ledgers: ledgers with an unfinished recovery, or left open by a run that lost its log. Opening them recovers them.
SELECT l.ledger_id, l.state, l.log, l.log_role, l.log_epoch, g.epoch AS epoch_of_the_log, l.last_add_confirmed,
       l.created_at, IF(l.state = 'IN_RECOVERY', 'its recovery did not end', 'its writer lost the log') AS why
FROM ledgers l LEFT JOIN logs g ON g.log = l.log AND g.log_id = l.log_id
WHERE l.state = 'IN_RECOVERY' OR (l.state = 'OPEN' AND l.log_epoch < g.epoch)
ORDER BY l.ledger_id
