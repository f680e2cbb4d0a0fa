-- Not judged: ledgers of which nobody knows which entries are confirmed. The other audits leave such entries out.
SELECT DISTINCT ledger_id, log, state, why FROM not_judged ORDER BY ledger_id
