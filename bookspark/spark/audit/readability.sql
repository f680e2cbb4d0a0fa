-- When copies were last read: the other audits count copies and damage after read_at as whole. Null: no known read of all
-- copies.
SELECT bookie_id, read_at, IF(read_at IS NULL, 'readability was not checked', NULL) AS problem
FROM readability WHERE NOT down ORDER BY read_at, bookie_id
