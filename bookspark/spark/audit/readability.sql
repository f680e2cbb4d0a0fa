-- When copies were last read: read_at is the last reading of all copies, null if unknown. The other audits count copies and
-- damage after it as whole.
SELECT bookie_id, read_at, IF(read_at IS NULL, 'readability was not checked', NULL) AS problem
FROM readability WHERE NOT down ORDER BY read_at, bookie_id
