-- When copies were last read: an index names copies whether they can be read or not. What came after read_at, damage or copies, was
-- not read again, and the other audits count it as whole. Null: nobody knows that all of the bookie's copies were ever read.
SELECT bookie_id, read_at, IF(read_at IS NULL, 'readability was not checked', NULL) AS problem
FROM readability WHERE NOT down ORDER BY read_at, bookie_id
