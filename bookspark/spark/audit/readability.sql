-- When copies were last read: an index names copies that may be unreadable. Damage and copies after read_at were not read; the
-- other audits count them as whole. Null: the bookie's copies were never all read, as far as is known.
SELECT bookie_id, read_at, IF(read_at IS NULL, 'readability was not checked', NULL) AS problem
FROM readability WHERE NOT down ORDER BY read_at, bookie_id
