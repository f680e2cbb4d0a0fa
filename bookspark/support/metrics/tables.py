"""Every metric of Bookspark. docs/metrics.md shows the same, and a test compares the two.

Law: labels are few, and each has few values: a directory, a kind of request, an answer. No label is a ledger's id.
"""

from __future__ import annotations

from functools import partial

from bookspark.support.metrics.described import Described, Form

_gauge, _counter, _histogram = (partial(Described, form) for form in (Form.GAUGE, Form.COUNTER, Form.HISTOGRAM))

ZOOKEEPER = (
    _gauge("bookspark_zookeeper_connected", "1 while connected to ZooKeeper."),
    _counter("bookspark_zookeeper_disconnections_total", "Lost connections to ZooKeeper."),
    _histogram("bookspark_zookeeper_call_seconds", "Time of answered calls to ZooKeeper."),
    _counter(
        "bookspark_zookeeper_failed_calls_total",
        "Calls without an answer in time or with a failure.",
    ),
)
"""Metrics of a bookie's and of a client's session."""

BOOKIE = (
    _gauge("bookspark_bookie_info", "Always 1; the label is the running version.", ("version",)),
    _gauge(
        "bookspark_bookie_clock_ahead_seconds",
        "Lead of the host's clock over ZooKeeper's; below 0: lag; 0 within the accuracy.",
    ),
    _gauge(
        "bookspark_bookie_certificate_days", "Days until a certificate in use ends; below 0: it ended.", ("option",)
    ),
    _gauge("bookspark_bookie_kept", "1 while a keeper holds the lease; else the bookie stops when it ends."),
    _gauge("bookspark_bookie_read_only", "1 while the bookie takes no new entries."),
    _histogram("bookspark_bookie_add_seconds", "Time of adds, from the disk's queue until done."),
    _histogram("bookspark_bookie_read_seconds", "Time of read answers, until all is sent."),
    _histogram("bookspark_bookie_sync_seconds", "Time of syncs of the active log.", ("directory",)),
    _histogram("bookspark_bookie_group_adds", "Adds that shared a write and a sync."),
    _histogram("bookspark_bookie_group_bytes", "Bytes of such a group."),
    _counter(
        "bookspark_bookie_requests_total",
        "Answered requests; a read up to the last entry has the status no_such_entry.",
        ("kind", "status"),
    ),
    _counter("bookspark_bookie_refusals_total", "Refused requests and connections."),
    _counter("bookspark_bookie_added_entries_total", "Entries accepted for a log."),
    _counter("bookspark_bookie_added_bytes_total", "Bytes of their batches."),
    _counter("bookspark_bookie_read_entries_total", "Entries sent to readers."),
    _counter("bookspark_bookie_read_bytes_total", "Bytes of their stored batches."),
    _counter("bookspark_bookie_fences_total", "Fenced ledgers; their writers end."),
    _gauge("bookspark_bookie_connections", "Connections of clients."),
    _gauge("bookspark_bookie_strangers", "Connections without identification yet."),
    _gauge("bookspark_bookie_add_in_flight_bytes", "Bytes of adds that are not durable yet."),
    _gauge("bookspark_bookie_reading_paused", "1 while no requests are read, because too much waits."),
    _gauge("bookspark_bookie_read_in_flight_bytes", "Bytes of answers that readers have not taken yet."),
    _gauge(
        "bookspark_bookie_unfinished_bytes",
        "Bytes of unfinished frames, unread answers, long polls and waiting requests.",
    ),
    _gauge("bookspark_bookie_reads_waiting", "Answer parts that wait for memory."),
    _gauge("bookspark_bookie_queued_turns", "Turns of the loop whose writes wait for the disk.", ("directory",)),
    _gauge("bookspark_bookie_ledgers", "Known ledgers."),
    _gauge("bookspark_bookie_index_ledgers", "Ledgers with entries in the index."),
    _gauge("bookspark_bookie_checkpoint_bytes", "Size of the index's checkpoint.", ("directory",)),
    _gauge("bookspark_bookie_log_bytes", "Size of the logs.", ("directory",)),
    _gauge(
        "bookspark_bookie_garbage_bytes",
        "Bytes of sealed logs without a ledger, at the last collection.",
        ("directory",),
    ),
    _gauge("bookspark_bookie_free_bytes", "Free space of the disk.", ("directory",)),
    _gauge(
        "bookspark_bookie_directory_failed",
        "1 for a failed directory.",
        ("directory",),
    ),
    _gauge("bookspark_bookie_directory_full", "1 for a directory that does not take every add.", ("directory",)),
    _counter("bookspark_bookie_directory_read_errors_total", "Batches that the disk could not read.", ("directory",)),
    _counter("bookspark_bookie_collections_total", "Finished garbage collections."),
    _gauge("bookspark_bookie_collection_seconds", "Duration of the last collection with its rewriting."),
    _gauge("bookspark_bookie_collection_failed", "1 if the last collection failed or could not judge all ledgers."),
    _counter("bookspark_bookie_collected_ledgers_total", "Deleted ledgers that were forgotten."),
    _counter("bookspark_bookie_removed_log_bytes_total", "Bytes of removed logs."),
    _counter("bookspark_bookie_rewritten_log_bytes_total", "Bytes of logs written in their place."),
    _counter("bookspark_bookie_failed_rewrites_total", "Failed rewritings; they are retried."),
    _gauge("bookspark_bookie_lossy_boot", "Number of the last boot that may have lost entries; 0: none."),
    _gauge("bookspark_bookie_healed_boot", "Number of the last such boot that is healed completely."),
    _gauge("bookspark_bookie_limbo_ledgers", "Ledgers that may lack entries, so absence proves nothing."),
    _gauge("bookspark_bookie_lacking_ledgers", "Ledgers with lost entries that are not all back."),
    _counter("bookspark_bookie_lost_copies_total", "Damaged copies of batches."),
    _gauge("bookspark_bookie_unread_copies", "Copies of batches that the disks can't read now."),
    _gauge("bookspark_bookie_healing_ledgers", "Ledgers to heal; 0: none."),
    _gauge("bookspark_bookie_healing_ledgers_left", "Ledgers still to heal."),
    _gauge("bookspark_bookie_healing_seconds", "Duration of healing."),
    _counter("bookspark_bookie_healing_entries_total", "Entries that healing restored."),
    _counter("bookspark_bookie_healing_bytes_total", "Bytes that healing restored."),
    _gauge("bookspark_bookie_healing_lost_entries", "Entries that belong here and no bookie has."),
    _gauge("bookspark_bookie_scrub_ratio", "Finished part of the scrub's round, 0 to 1."),
    _gauge(
        "bookspark_bookie_scrub_finished_timestamp_seconds",
        "End of the last whole scrub, in seconds since 1970; 0: none.",
    ),
    _counter("bookspark_bookie_scrub_dead_bytes_total", "Damaged bytes without live entries."),
    _counter(
        "bookspark_bookie_renewed_files_total",
        "Damaged control files that were rewritten.",
    ),
)
"""A bookie has these and those of ZOOKEEPER. All have the label ``bookie_id``."""

CLIENT = (
    _histogram("bookspark_client_request_seconds", "Time of a bookie's answer to an add, a read or a sync.", ("kind",)),
    _counter(
        "bookspark_client_failed_requests_total", "Requests that a bookie did not or could not answer.", ("reason",)
    ),
    _counter("bookspark_client_failed_connections_total", "Failed connections to bookies."),
    _counter("bookspark_client_sent_bytes_total", "Bytes of frames sent to bookies."),
    _counter("bookspark_client_received_bytes_total", "Bytes of frames from bookies."),
    _counter("bookspark_client_appended_entries_total", "Entries appended and sent, without copies."),
    _counter("bookspark_client_appended_bytes_total", "Bytes of their payloads."),
    _counter("bookspark_client_ensemble_changes_total", "Replacements of failed bookies in ledgers."),
    _gauge("bookspark_client_connections", "Connected bookies."),
    _gauge("bookspark_client_bookies_behind", "Bookies that take in nothing: their writers wait."),
    _gauge("bookspark_client_queued_bytes", "Bytes that sockets have not taken."),
    _gauge("bookspark_client_requests_in_flight", "Requests without an answer yet."),
    _gauge("bookspark_client_quarantined_bookies", "Bookies avoided after a recent failure."),
    _gauge("bookspark_client_writers", "Ledgers open for writing."),
    _gauge("bookspark_client_kept_bytes", "Bytes that writers keep until bookies have them."),
    _gauge("bookspark_client_waiting_appends", "Appends that wait for room."),
)
"""A client has these and those of ZOOKEEPER. All have the label ``client``."""

AUTORECOVERY = (
    _gauge("bookspark_autorecovery_enabled", "1 while workers begin repairs; 0: switched off."),
    _gauge("bookspark_autorecovery_auditors", "1 with an auditor. 0: lost copies stay unnoticed."),
    _gauge(
        "bookspark_autorecovery_underreplicated_ledgers", "Ledgers known to lack copies, or closed with fewer copies."
    ),
    _gauge("bookspark_autorecovery_repairs_under_way", "Such ledgers under repair now."),
    _gauge("bookspark_autorecovery_lost_bookies", "Bookies that count as lost; others take over."),
    _gauge("bookspark_autorecovery_away_bookies", "Absent bookies that do not count as lost yet."),
    _gauge(
        "bookspark_autorecovery_check_finished_timestamp_seconds",
        "End of the last exact check, in seconds since 1970; 0: none.",
    ),
    _gauge("bookspark_autorecovery_check_marked_ledgers", "Ledgers that lacked copies at the last exact check."),
    _gauge("bookspark_autorecovery_check_skipped_bookies", "Bookies that the last check could not ask."),
    _gauge("bookspark_autorecovery_check_unreadable_ledgers", "Ledgers with undecodable records."),
    _gauge("bookspark_autorecovery_open_ledgers", "Ledgers not closed, as far as the auditor has looked."),
    _gauge("bookspark_autorecovery_standing_recoveries", "Such ledgers in recovery for 10 s or longer."),
    _counter("bookspark_autorecovery_repaired_ledgers_total", "Ledgers repaired by this process."),
    _counter("bookspark_autorecovery_failed_repairs_total", "Failed repairs of this process."),
    _counter("bookspark_autorecovery_copied_entries_total", "Entries copied for this process."),
    _counter("bookspark_autorecovery_copied_bytes_total", "Bytes of their payloads."),
    _counter("bookspark_autorecovery_busy_seconds_total", "Time spent on repairs."),
    _gauge(
        "bookspark_autorecovery_clock_ahead_seconds",
        "Lead of the host's clock over ZooKeeper's, to the minute; below 0: lag.",
    ),
    _gauge(
        "bookspark_cluster_bookies",
        "Bookies with a cookie or a registration, by state: writable, read_only, down.",
        ("state",),
    ),
)
"""An autorecovery process has these, those of ZOOKEEPER and those of CLIENT. Figures of the cluster are the same in each
process, and left out while ZooKeeper does not answer. Only the auditor has those of ledgers that are not closed."""

LOG_READERS = (
    _gauge(
        "bookspark_log_reader_lag_rows",
        "Unread rows of the log.",
        ("kind", "reader"),
    ),
    _gauge(
        "bookspark_log_reader_lag_seconds",
        "Age of the first unread row's commit; 0 without unread rows.",
        ("kind", "reader"),
    ),
    _gauge(
        "bookspark_log_reader_gone",
        "1 if the reader does not run and has rows to read, and is no query that ended by itself.",
        ("kind", "reader"),
    ),
)
"""Reported positions of a log's readers, computed by the process that serves a log's metrics. All have the label ``log``."""
