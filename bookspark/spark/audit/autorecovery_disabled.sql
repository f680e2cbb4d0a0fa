-- Autorecovery is disabled: copies that are lost stay lost until somebody says bookspark autorecovery enable.
SELECT 'disabled' AS autorecovery, tasks AS ledgers_that_wait FROM autorecovery WHERE NOT enabled
