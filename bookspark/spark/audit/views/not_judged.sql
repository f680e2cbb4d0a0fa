-- Fragments of which nobody can say which entries are confirmed, and why. No other audit judges them.
SELECT l.ledger_id, l.log, l.state, l.write_quorum, l.ack_quorum, f.ensemble,
       IF(l.metadata_version <> f.metadata_version, 'its metadata changed while the snapshot was taken: take another',
          'no LAC was told: give its password, if it has one, or have its bookies up') AS why
FROM ledgers l JOIN fragments f ON f.ledger_id = l.ledger_id
WHERE l.metadata_version <> f.metadata_version OR (l.last_add_confirmed IS NULL AND f.last_entry_id IS NULL)
UNION ALL
SELECT l.ledger_id, l.log, l.state, l.write_quorum, l.ack_quorum, CAST(NULL AS ARRAY<STRING>) AS ensemble,
       'its record cannot be decoded, so nobody knows its bookies: restore it, delete the ledger, or upgrade Bookspark' AS why
FROM ledgers l WHERE l.state = 'UNREADABLE'
