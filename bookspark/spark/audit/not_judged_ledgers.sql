-- Not judged: ledgers of which it is not known which entries are confirmed. What the other audits find leaves such entries out.
SELECT DISTINCT ledger_id, log, state, why FROM not_judged ORDER BY ledger_id
