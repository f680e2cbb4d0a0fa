-- Autorecovery is disabled: lost copies stay lost until bookspark autorecovery enable.
SELECT 'disabled' AS autorecovery, tasks AS ledgers_that_wait FROM autorecovery WHERE NOT enabled
