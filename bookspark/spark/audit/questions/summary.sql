-- Summary: how much there is in a snapshot: ledgers, those of them that are not closed, logs, bookies, and those that are down.
SELECT (SELECT COUNT(*) FROM ledgers) AS ledgers,
       (SELECT COUNT(*) FROM ledgers WHERE state <> 'CLOSED') AS open_ledgers,
       (SELECT COUNT(*) FROM logs) AS logs,
       (SELECT COUNT(*) FROM bookies) AS bookies,
       (SELECT COUNT(*) FROM bookies WHERE state = 'down') AS bookies_down
