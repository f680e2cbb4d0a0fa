"""The invariants, one module each. ``CHECKERS`` has them by name: ``check(view)`` returns what is wrong, or None.

Names are those of the TLA+ specification, where it has the invariant.

=====================================================  =========================================================================
``no_machine_fails``                                   every event that can happen is decided
``no_divergence_between_writer_and_metadata``          a closed ledger ends at or after everything that its writer confirmed
``all_acked_entries_are_readable``                     a confirmed entry is on a bookie where readers look for it
``all_committed_entries_reach_ack_quorum``             a confirmed entry is on an ack quorum
``all_entries_of_closed_ledger_are_readable``          a ledger is not closed after an entry that nobody has
``no_out_of_order_entries``                            entry i is what the writer appended as entry i, everywhere
``last_add_confirmed_is_confirmed``                    a LAC that a bookie tells is confirmed
``no_dirty_reads``                                     readers see confirmed entries only, and what they see stays so
``closed_length_is_that_of_the_last_entry``            a closed ledger's length is that of its entries
``accepted_losses_are_losses``                         what an operator accepts as lost is on no bookie
``what_recovery_wrote_is_synced``                      what recovery wrote back outlives any crash
``tail_fragments_reach_write_quorum``                  guaranteed ledgers: all but the last fragment is on the write quorum
``all_entries_of_closed_ledger_reached_write_quorum``  guaranteed ledgers: a closed one is on the write quorum
``told_ends_stay``                                     who was told that the ledger is closed was told its end
``repairs_have_repaired``                              a repair that ended well has replaced the lost bookie, by whole copies
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
