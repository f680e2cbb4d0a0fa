-- Not judged: ledgers with unknown confirmed entries, which the other audits leave out.
SELECT DISTINCT ledger_id, log, state, why FROM not_judged ORDER BY ledger_id
