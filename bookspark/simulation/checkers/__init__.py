"""The invariants, one module each; ``CHECKERS`` has them by name, each ``check(view)`` returning what is wrong, or None."""

from bookspark.simulation.checkers import (
    all_acked_entries_are_readable,
    all_committed_entries_reach_ack_quorum,
    all_entries_of_closed_ledger_are_readable,
    all_entries_of_closed_ledger_reached_write_quorum,
    closed_length_is_that_of_the_last_entry,
    last_add_confirmed_is_confirmed,
    no_dirty_reads,
    no_divergence_between_writer_and_metadata,
    no_out_of_order_entries,
    tail_fragments_reach_write_quorum,
    what_recovery_wrote_is_synced,
)

CHECKERS = {
    module.__name__.rpartition(".")[2]: module.check
    for module in (
        no_divergence_between_writer_and_metadata,
        all_acked_entries_are_readable,
        all_committed_entries_reach_ack_quorum,
        all_entries_of_closed_ledger_are_readable,
        no_out_of_order_entries,
        last_add_confirmed_is_confirmed,
        no_dirty_reads,
        closed_length_is_that_of_the_last_entry,
        what_recovery_wrote_is_synced,
        tail_fragments_reach_write_quorum,
        all_entries_of_closed_ledger_reached_write_quorum,
    )
}
