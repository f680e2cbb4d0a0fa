-- Damaged copies: ledgers with entries that these bookies lost and have not got back. If they stay here, table
-- underreplication has the reason.
SELECT bookie_id, MAX(lacking_ledgers) AS ledgers FROM disks
GROUP BY bookie_id HAVING MAX(lacking_ledgers) > 0 ORDER BY bookie_id
