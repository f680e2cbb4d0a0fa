"""Only what is gone is accepted as lost.

Law: with an accepted loss, a confirmed entry may be cut off, or be given up, only if an ack quorum of copies of it may have been
lost. If nobody else may have written it back meanwhile (another recoverer, repair), no bookie has it either: a bookie that is
merely away keeps its entries.

What the record says is about the right bookies: of entries that are given up these are the ones that the record assigns to them,
whoever took them over meanwhile, since repair passes over these and over nothing else. Of a fence or an end that is not known
they said themselves that they lost something, or the operator named them. A record that tells of a loss says of what: a ledger
that could be closed without one has none.
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
        # Of two ledgers, a boot that lost what was the other one's does not know that it never had this entry.
        known = entry_id <= confirmed or not options.second_ledger
        if (known and view.lost_boots < options.ack_quorum) or (alone and holders):
            return (
                f"entry {entry_id} was confirmed and is accepted as lost, and {', '.join(holders) or 'nobody'} has it"
            )
    return next((wrong for wrong in (_about_others(view), _not_lost(view)) if wrong), None)


def _about_others(view: WorldView) -> str | None:
    """A loss of nothing, or of an entry on other bookies than those that are to have it."""
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
    """A bookie that counts as lost, that nobody named and that has nothing to say itself."""
    loss = view.metadata.accepted_loss
    # Of two ledgers, what a boot lost may have been the other one's.
    if loss is None or view.options.second_ledger:
        return None
    for one in loss.losses:
        for name in one.bookies if one.kind is not LossKind.ENTRIES else ():
            bookie = view.bookies[name]
            # The boot that is counted for a bookie that went for good is none after which it answers.
            if name not in loss.named and bookie.lost_boots <= bookie.gone:
                return f"{name} counts as lost, nobody named it, and it lost nothing"
    return None
