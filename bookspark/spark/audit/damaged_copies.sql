-- Damaged copies: ledgers of which these bookies lost entries that are not all back: their copies can't be read any more.
-- Autorecovery copies them again. If they stay here, look for the reason in table underreplication.
SELECT bookie_id, MAX(lacking_ledgers) AS ledgers FROM disks
GROUP BY bookie_id HAVING MAX(lacking_ledgers) > 0 ORDER BY bookie_id
