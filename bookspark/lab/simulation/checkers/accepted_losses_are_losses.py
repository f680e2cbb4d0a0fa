"""Only lost entries are accepted as lost.

Law: with an accepted loss, a confirmed entry may be cut off or given up only if an ack quorum of its copies may have been
lost. If no other client (another recoverer, repair) may have written it back, no bookie has it either: an unreachable
bookie keeps its entries.

The record names the right bookies. For an entry that is given up, these stay its assigned bookies, because repair skips such
entries and no others. For an unknown fence or end, each named bookie reported a loss itself, or the operator named it. A
record with a loss says which: a ledger that could be closed without a loss has none.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.accepted_loss import LossKind
from bookspark.protocol.writing.ensemble_change import ChangeMode


def check(view: WorldView) -> str | None:
    options, metadata = view.options, view.metadata
    if view.deleted or metadata.accepted_loss is None:
        return None
    end = metadata.last_entry_id
    given_up = [entry_id for entry_id in range(end + 1) if view.accepted_as_lost(entry_id)]
    alone = options.recoverers == 1 and options.ensemble_changes is ChangeMode.OFF
    alone = alone and not (options.heals or options.replicators)
    confirmed = view.writer.last_add_confirmed
    for entry_id in (*given_up, *range(end + 1, confirmed + 1)):
        holders = [name for name, bookie in view.bookies.items() if entry_id in bookie.rows]
        # With two ledgers, a bookie that lost only the other's data can't know whether it held this entry.
        known = entry_id <= confirmed or not options.second_ledger
        if (known and view.lost_boots < options.ack_quorum) or (alone and holders):
            return (
                f"entry {entry_id} was confirmed and is accepted as lost, and {', '.join(holders) or 'nobody'} has it"
            )
    return next((wrong for wrong in (_about_others(view), _not_lost(view)) if wrong), None)


def _about_others(view: WorldView) -> str | None:
    """A loss without content, or of an entry on other bookies than its assigned ones."""
    loss = view.metadata.accepted_loss
    if loss is not None and not loss.losses:
        return "a loss was accepted, and the record does not say of what"
    for one in () if loss is None else loss.losses:
        for entry_id in range(one.first, one.last + 1) if one.kind is LossKind.ENTRIES else ():
            if entry_id > view.metadata.last_entry_id:
                return f"entry {entry_id} is given up, and the ledger is closed at {view.metadata.last_entry_id}"
            assigned = sorted(view.metadata.write_set_of(entry_id))
            if sorted(one.bookies) != assigned:
                return f"entry {entry_id} is given up on {', '.join(one.bookies)}, and is {', '.join(assigned)}'s"
    return None


def _not_lost(view: WorldView) -> str | None:
    """A bookie counted as lost without a name from the operator or a loss of its own."""
    loss = view.metadata.accepted_loss
    # With two ledgers, a boot may have lost only the other's data.
    if loss is None or view.options.second_ledger:
        return None
    for one in loss.losses:
        for name in one.bookies if one.kind is not LossKind.ENTRIES else ():
            bookie = view.bookies[name]
            # The boot counted for a departed bookie is not a real boot: no answer follows it.
            if name not in loss.named and bookie.lost_boots <= bookie.gone:
                return f"{name} counts as lost, nobody named it, and it lost nothing"
    return None
