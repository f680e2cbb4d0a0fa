-- For each bookie: when its last scrub ended, which read all that it holds, so that damage was found. Null: none ended yet, or the
-- bookie is down.
SELECT b.bookie_id, b.state = 'down' AS down,
       IF(BOOL_AND(d.checked_at IS NOT NULL), MIN(d.checked_at), NULL) AS read_at
FROM bookies b LEFT JOIN disks d ON d.bookie_id = b.bookie_id
GROUP BY b.bookie_id, b.state
