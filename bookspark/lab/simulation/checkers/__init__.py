"""The invariants, one module each. ``CHECKERS`` has them by name: ``check(view)`` returns a violation's description, or None.

Names are those of the TLA+ specification, where it has the invariant.

=====================================================  =========================================================================
``no_machine_fails``                                   every event that can happen is decided
``no_divergence_between_writer_and_metadata``          a closed ledger ends at or after every entry confirmed to its writer
``all_acked_entries_are_readable``                     a confirmed entry is on a bookie of its write set
``all_committed_entries_reach_ack_quorum``             a confirmed entry is on an ack quorum
``all_entries_of_closed_ledger_are_readable``          every entry of a closed ledger is on a bookie
``no_out_of_order_entries``                            entry i is the writer's entry i, everywhere
``last_add_confirmed_is_confirmed``                    a LAC that a bookie reports is confirmed
``no_dirty_reads``                                     readers see only confirmed entries, and reads repeat
``closed_length_is_that_of_the_last_entry``            a closed ledger's length is that of its entries
``accepted_losses_are_losses``                         an entry accepted as lost is on no bookie
``what_recovery_wrote_is_synced``                      entries written back by recovery outlive any crash
``tail_fragments_reach_write_quorum``                  guaranteed ledgers: all but the last fragment is on the write quorum
``all_entries_of_closed_ledger_reached_write_quorum``  guaranteed ledgers: a closed ledger is on the write quorum
``told_ends_stay``                                     an end reported to a client stays the ledger's end
``repairs_have_repaired``                              a successful repair has replaced the lost bookie, by whole copies
=====================================================  =========================================================================

Example::

    from bookspark.lab.simulation.checkers import CHECKERS

    problems = {name: what for name, check in CHECKERS.items() if (what := check(world.view(state))) is not None}
"""

from bookspark.lab.simulation.checkers import (
    accepted_losses_are_losses,
    all_acked_entries_are_readable,
    all_committed_entries_reach_ack_quorum,
    all_entries_of_closed_ledger_are_readable,
    all_entries_of_closed_ledger_reached_write_quorum,
    closed_length_is_that_of_the_last_entry,
    last_add_confirmed_is_confirmed,
    no_dirty_reads,
    no_divergence_between_writer_and_metadata,
    no_machine_fails,
    no_out_of_order_entries,
    repairs_have_repaired,
    tail_fragments_reach_write_quorum,
    told_ends_stay,
    what_recovery_wrote_is_synced,
)

CHECKERS = {
    module.__name__.rpartition(".")[2]: module.check
    for module in (
        no_machine_fails,
        no_divergence_between_writer_and_metadata,
        all_acked_entries_are_readable,
        all_committed_entries_reach_ack_quorum,
        all_entries_of_closed_ledger_are_readable,
        no_out_of_order_entries,
        last_add_confirmed_is_confirmed,
        no_dirty_reads,
        closed_length_is_that_of_the_last_entry,
        accepted_losses_are_losses,
        what_recovery_wrote_is_synced,
        tail_fragments_reach_write_quorum,
        all_entries_of_closed_ledger_reached_write_quorum,
        told_ends_stay,
        repairs_have_repaired,
    )
}
